"""Random histories of sequences: nobody is answered from anything but what was sent in its own, and planted bugs are found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence as Several

import pytest

from slotwise.backends.exchange import BackendAnswer, BackendRequest
from slotwise.backends.local import sequence_queue
from slotwise.backends.local.queue_members import BatchWorker, Sequence, WaitingRequest
from slotwise.backends.local.sequence_queue import SequenceLimits, SequenceQueue
from tests.backends.simulation.sequence_history import SequenceHistory
from tests.backends.simulation.virtual_loop import problems_of, run
from tests.support.seed import PARTS, days_seeds

HISTORIES, LONG_PART = 400, 1_000
FOUND_WITHIN = 300


def problems(seed: int, queue: type[SequenceQueue] = SequenceQueue) -> list[str]:
    """What did not hold in the history with this seed."""
    return problems_of(SequenceHistory(seed, queue).run(), seed)


def test_in_every_history_each_answer_is_made_of_its_own_sequence() -> None:
    assert {seed: said for seed in range(HISTORIES) if (said := problems(seed))} == {}


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_in_very_many_sequences_too(part: int) -> None:
    assert {seed: said for seed in days_seeds(part, LONG_PART) if (said := problems(seed))} == {}


def test_most_of_them_are_answered() -> None:
    histories = [SequenceHistory(seed) for seed in range(20)]
    for seed, history in enumerate(histories):
        run(history.run(), seed)
    assert sum(history.answered for history in histories) > 20 * 10


class AnyWorker(SequenceQueue):
    """A sequence goes on in another worker when its own has ended."""

    def _end(self, sequence: Sequence, why: str) -> None:
        if "worker" in why:
            sequence.worker = None
        else:
            super()._end(sequence, why)


class SeveralAtOnce(SequenceQueue):
    """A request goes although one of its sequence runs."""

    def _next_batch(self, worker: BatchWorker, now: float) -> list[WaitingRequest]:
        for sequence in self.sequences.values():
            sequence.running = None
        batch = super()._next_batch(worker, now)
        for sequence in self.sequences.values():
            if sequence.worker is worker and sequence.line:
                batch.append(sequence.line.popleft())
        return batch


class NewestFirst(SequenceQueue):
    """What came last goes first."""

    def _line_up(self, one: WaitingRequest) -> None:
        super()._line_up(one)
        self.of[one.id].line.rotate(1)


class WithoutItsStart(SequenceQueue):
    """What waits goes on although the first request was not run."""

    def _end(self, sequence: Sequence, why: str) -> None:
        if "not run" not in why:
            super()._end(sequence, why)


class BegunAllTheSame(SequenceQueue):
    """What comes after a beginning that failed is answered from what was before."""

    def _end(self, sequence: Sequence, why: str) -> None:
        if "failed" not in why:
            super()._end(sequence, why)


class AlwaysKnown(SequenceQueue):
    """A sequence that is over begins again by itself."""

    def _look_at_request(self, request: object) -> None:
        begins = request.headers.get(self.limits.headers[1])  # type: ignore[attr-defined]
        request.headers[self.limits.headers[1]] = "true"  # type: ignore[attr-defined]
        super()._look_at_request(request)  # type: ignore[arg-type]
        if begins is None:
            del request.headers[self.limits.headers[1]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("bug", [AnyWorker, SeveralAtOnce, NewestFirst, WithoutItsStart, BegunAllTheSame, AlwaysKnown])
def test_a_planted_bug_in_sequences_is_found(bug: type[SequenceQueue]) -> None:
    assert any(problems(seed, bug) for seed in range(FOUND_WITHIN))


def test_ids_of_two_keys_that_are_the_same_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_queue, "_prefix", lambda owner: "")
    assert any(problems(seed) for seed in range(FOUND_WITHIN))


@pytest.mark.parametrize("leaves", [False, True])
def test_what_waits_of_a_sequence_that_is_being_ended_is_answered_although_its_id_is_used_again(leaves: bool) -> None:
    """The new beginning is refused; where the one that ends it is not run, what comes behind both is not answered from it."""
    id_, start, end = SequenceLimits().headers
    ran = list[str]()

    async def history() -> list[object]:
        queue, loop = SequenceQueue(4, limits=SequenceLimits(4, 8)), asyncio.get_running_loop()

        def answer(batch: Several[WaitingRequest]) -> None:
            for one in batch:
                ran.append(one.request.body.decode())
                queue.answered(worker, one.id, BackendAnswer(200, [], one.request.body))
            queue.done(worker, dead=False)

        worker = BatchWorker(lambda batch: loop.call_later(0.1, answer, batch) and None, lambda why: None)
        queue.joined(worker)
        worker.heard_at = 1e9
        asked = {"a": {start: "true"}, "b": {}, "c": {end: "true"}, "d": {start: "true"}, "e": {}}
        requests = [BackendRequest("m", 1e9, headers={id_: "s", **more}, body=body.encode()) for body, more in asked.items()]
        answers = []
        for request in requests[:4]:
            answers.append(asyncio.ensure_future(queue.answer(request)))
            await asyncio.sleep(0.01)
        if leaves:
            requests[2].leave()
            await asyncio.sleep(0)
        answers.append(asyncio.ensure_future(queue.answer(requests[4])))
        return [getattr(one, "status", one) for one in await asyncio.gather(*answers, return_exceptions=True)]

    assert run(history(), 0) == ([200, 410, 499, 410, 410] if leaves else [200, 200, 200, 410, 410])
    assert ran == (["a"] if leaves else ["a", "b", "c"])
