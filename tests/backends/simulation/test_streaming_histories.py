"""Random histories of the local host's streams: every piece once and in order, every slot free again, every planted bug found.

python -m tests.backends.simulation.test_streaming_histories 4711     runs one history again and prints what did not hold
"""

from __future__ import annotations

import asyncio
import sys

import pytest

from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused
from slotwise.backends.local.queue_members import StreamWorker, WaitingRequest
from slotwise.backends.local.stream_queue import StreamQueue
from tests.backends.simulation.streaming_bugs import STREAMING_BUGS
from tests.backends.simulation.streaming_history import StreamingHistory
from tests.backends.simulation.virtual_loop import problems_of, run
from tests.support.seed import PARTS, days_seeds

HISTORIES, LONG_PART = 300, 2_000
FOUND_WITHIN = 300


def problems(seed: int, queue: type[StreamQueue] = StreamQueue) -> list[str]:
    """What did not hold in the history with this seed."""
    return problems_of(StreamingHistory(seed, queue).run(), seed)


def test_in_every_history_each_stream_has_its_pieces_once_and_in_order() -> None:
    wrong = {seed: said for seed in range(HISTORIES) if (said := problems(seed))}
    assert not wrong


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_in_very_many_histories_of_streams_too(part: int) -> None:
    wrong = {seed: said for seed in days_seeds(part, LONG_PART) if (said := problems(seed))}
    assert not wrong


@pytest.mark.parametrize("bug", STREAMING_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_that_was_planted_in_streams_is_found(bug: type[StreamQueue]) -> None:
    assert any(problems(seed, bug) for seed in range(FOUND_WITHIN))


ANSWER_S, SLOTS = 30.0, 8  # of each request, and how many a worker has


async def _whole_answers(turns: bool) -> list[int]:
    """The statuses of requests whose answers come whole, of which the first ones were in a worker that ended.

    turns: whether the worker that comes then says that it takes turns.
    """
    loop, queue, statuses = asyncio.get_running_loop(), StreamQueue(SLOTS), list[int]()

    def send(those: list[WaitingRequest]) -> None:
        for one in those:
            loop.call_later(ANSWER_S, answer, one, one.held_by)

    def answer(one: WaitingRequest, worker: StreamWorker) -> None:
        if one.held_by is worker:
            queue.answered(worker, one.id, BackendAnswer(200, [], b"all of it"))

    def start() -> StreamWorker:
        queue.joined(worker := StreamWorker(send, lambda _: None, slots=SLOTS))
        return worker

    async def ask(after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            statuses.append((await queue.answer(BackendRequest("m", loop.time() + 120))).status)
        except Refused as refused:
            statuses.append(refused.status)

    async def beats(worker: StreamWorker) -> None:
        while turns:
            worker.busy_since = loop.time()
            await asyncio.sleep(1.0)

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(after_s)) for after_s in (*[0.0] * SLOTS, *[20.0] * SLOTS)]
        ends = start()
        await asyncio.sleep(5.0)
        queue.ended(ends)
        beating = asyncio.create_task(beats(start()))
        await asyncio.wait(asked)
        beating.cancel()
    return statuses


def test_a_worker_that_ends_once_costs_nobody_a_whole_answer() -> None:
    assert run(_whole_answers(turns=True), 1) == [200] * 2 * SLOTS
    assert 504 in run(_whole_answers(turns=False), 1), "who says nothing is tried to the end, and others wait"


async def _ended_by_a_slow_body() -> tuple[int, list[int]]:
    """How many of two workers at a time one body ends, ten seconds after it joins, and the statuses of all, its own first."""
    loop, queue, statuses, ended = asyncio.get_running_loop(), StreamQueue(2), dict[bytes, int](), list[StreamWorker]()

    def send(those: list[WaitingRequest]) -> None:
        for one in those:
            act = end if one.request.body == b"kills" else answer
            loop.call_later(10.0 if act is end else 12.0, act, one, one.held_by)

    def answer(one: WaitingRequest, worker: StreamWorker) -> None:
        if one.held_by is worker:
            queue.answered(worker, one.id, BackendAnswer(200, [], b"all of it"))

    def end(one: WaitingRequest, worker: StreamWorker) -> None:
        if one.held_by is worker:
            ended.append(worker)
            queue.ended(worker)
            start()

    def start() -> None:
        queue.joined(worker := StreamWorker(send, lambda _: None, slots=2))
        beats(worker)

    def beats(worker: StreamWorker) -> None:
        worker.busy_since = worker.heard_at = loop.time()
        loop.call_later(1.0, beats, worker)

    async def ask(body: bytes, at: float) -> None:
        await asyncio.sleep(at)
        try:
            statuses[body] = (await queue.answer(BackendRequest("m", loop.time() + 1000, body=body))).status
        except Refused as refused:
            statuses[body] = refused.status

    start()
    start()
    mates = [(b"%d" % i, 1.0 + 0.9 * i) for i in range(60)]
    await asyncio.gather(*(ask(*one) for one in [(b"kills", 0.0), *mates]))
    return len(ended), [statuses.pop(b"kills"), *statuses.values()]


def test_a_body_that_ends_workers_after_it_was_tried_ends_three() -> None:
    ended, statuses = run(_ended_by_a_slow_body(), 1)
    assert (ended, statuses) == (3, [500, *[200] * 60])


if __name__ == "__main__":
    print(problems(int(sys.argv[1])))
