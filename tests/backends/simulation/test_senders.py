"""Senders that want more than their share, in virtual time: many, of all priorities, that leave, or whose bodies cost too much.

Whatever they do, nobody starves, each request ends once with its own answer, and nothing is kept of who has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused
from slotwise.backends.local.dispatcher import Linger
from slotwise.backends.local.model_queue import ModelQueue
from slotwise.backends.local.queue_members import BatchWorker, WaitingRequest
from slotwise.backends.priorities import PATIENCE
from tests.backends.simulation.history import History, SimRequest
from tests.backends.simulation.virtual_loop import run

BATCH = 8
CROWDS = 40
SENDERS = 2_000


class CrowdHistory(History):
    """A history of a crowd: many senders of all weights and priorities, most of which leave."""

    requests, leavers = (150, 250), 100

    def __init__(self, seed: int, queue: type[ModelQueue] = ModelQueue) -> None:
        super().__init__(seed, queue)
        random = self.random
        self.senders = {f"s{i}": (random.choice((1, 2, 100)), random.choice((-9, 0, 0, 9))) for i in range(40)}

    def request(self, i: int) -> SimRequest:
        """Half of all are one sender's."""
        request = super().request(i)
        if self.random.random() < 0.5:
            request.sender = "s0"
            request.weight, request.priority = self.senders["s0"]
        return request


@pytest.mark.parametrize("seed", range(CROWDS))
def test_in_a_crowd_each_request_ends_once_and_nobody_starves(seed: int) -> None:
    assert not run(CrowdHistory(seed).run(), seed)


class Starves(ModelQueue):
    """The highest priority goes, for ever."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.waiting._priorities.gone = lambda priority, waiting: None  # type: ignore[method-assign]


def test_a_queue_that_lets_priorities_starve_is_found() -> None:
    assert any("starve" in said for seed in range(CROWDS) for said in run(CrowdHistory(seed, Starves).run(), seed))


class Asked:
    """A queue whose workers take as long as `took_s` says of a batch. gone: whose requests were sent, in order."""

    def __init__(
        self,
        took_s: Callable[[Sequence[WaitingRequest]], float],
        workers: int = 1,
        linger: Linger = "free",
        target_s: float = 0.0,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue = ModelQueue(BATCH, 0.02, job_queue_size=100_000, linger=linger, target_s=target_s)
        self.took_s, self.gone = took_s, list[str]()
        for _ in range(workers):
            self.queue.joined(self.worker())

    def worker(self) -> BatchWorker:
        def send(batch: Sequence[WaitingRequest]) -> None:
            self.gone += [one.request.sender for one in batch]
            took_s = self.took_s(batch)
            if took_s:
                self.loop.call_later(took_s, done, batch)
            else:
                self.loop.call_soon(done, batch)

        def done(batch: Sequence[WaitingRequest]) -> None:
            for one in batch:
                self.queue.answered(worker, one.id, BackendAnswer(200, [], one.request.body))
            self.queue.done(worker, dead=False)

        worker = BatchWorker(send, lambda why: None)
        worker.heard_at = float("inf")
        return worker

    async def ask(self, sender: str, priority: int = 0, weight: int = 1, times: int = 1) -> None:
        for i in range(times):
            body = f"{sender} {i}".encode()
            answer = await self.queue.answer(
                BackendRequest("m", 1e9, body=body, sender=sender, priority=priority, weight=weight)
            )
            assert answer.body == body

    def flood(self, sender: str, count: int, priority: int = 0, weight: int = 1) -> list[asyncio.Future[None]]:
        return [asyncio.ensure_future(self.ask(sender, priority, weight, 10**6)) for _ in range(count)]


def test_who_has_the_least_priority_is_answered_beside_two_floods_of_higher_ones() -> None:
    async def history() -> list[int]:
        asked = Asked(lambda batch: 0.1, workers=2)
        floods = asked.flood("boss", 512, priority=9, weight=100) + asked.flood("other", 512, weight=100)
        await asyncio.sleep(1.0)
        passed = []
        for _ in range(10):
            before = len(asked.gone)
            await asked.ask("last", priority=-9)
            passed.append(asked.gone[before:].index("last"))
        for one in floods:
            one.cancel()
        await asyncio.wait(floods)
        share = asked.gone.count("boss") / len(asked.gone)
        assert share > 0.8  # it still goes first
        return passed

    # Those of a turn of the loop that were formed before it came, then as many as may go past it.
    assert max(run(history(), 1)) <= 2 * BATCH + PATIENCE + 2


def test_a_weight_that_is_taken_away_is_gone_although_its_sender_never_pauses() -> None:
    async def history() -> tuple[int, int]:
        asked = Asked(lambda batch: 0.1)
        other = asked.flood("other", 64)
        heavy = asked.flood("heavy", 64, weight=100)
        await asyncio.sleep(3.0)
        before = asked.gone[-160:].count("other")
        light = asked.flood("heavy", 64, weight=1)
        for one in heavy:
            one.cancel()
        await asyncio.sleep(3.0)
        for one in other + light:
            one.cancel()
        await asyncio.wait(heavy + other + light)
        return before, asked.gone[-80:].count("other")

    before, after = run(history(), 1)
    assert before < 20
    assert 30 <= after <= 50


@pytest.mark.parametrize("linger", ["free", "exact", "auto", "advise"])
@pytest.mark.parametrize("target_s", [0.0, 0.5])
def test_batches_that_take_no_time_that_a_clock_can_see_stop_no_worker(linger: Linger, target_s: float) -> None:
    async def history() -> int:
        asked = Asked(lambda batch: 0.0, linger=linger, target_s=target_s)
        clients = [asyncio.ensure_future(asked.ask(f"s{i}", times=50)) for i in range(3 * BATCH)]
        done, waiting = await asyncio.wait(clients, timeout=100.0)
        assert not waiting
        assert not any(one.exception() for one in done)
        return len(asked.gone)

    assert run(history(), 1) == 3 * BATCH * 50


def test_nothing_is_kept_of_thousands_of_senders_that_came_and_left() -> None:
    async def history() -> None:
        asked = Asked(lambda batch: 0.01, workers=2)
        queue = asked.queue
        flood = asked.flood("flood", 512)
        for i in range(SENDERS):
            asking = [asyncio.ensure_future(asked.ask(f"s{i}-{j}", priority=i % 19 - 9, weight=1 + i % 100)) for j in range(2)]
            await asyncio.sleep(0)
            asking[0].cancel()  # at once: nearly none has been sent
            await asyncio.sleep(0.001)
            asking[1].cancel()
            assert len(queue.waiting) <= 512 + 2 * 60  # who has left is forgotten within a look
        for one in flood:
            one.cancel()
        await asyncio.wait(flood)
        await asyncio.sleep(1.0)
        assert queue.ledger.open == len(queue._open) == len(queue.waiting) == len(list(queue.waiting)) == 0
        assert sum(queue.ledger.ended.values()) == queue.ledger.admitted > 2 * SENDERS
        line = queue.waiting
        assert not any(line._turns.values())
        assert len(line._turns) <= 19
        assert len(line._priorities._passed) <= 19

    run(history(), 1)


def test_bodies_whose_cost_lies_have_nobody_else_refused_or_waiting() -> None:
    """One sender's bodies take two seconds now and then; the others' time is enough, and they are answered in it."""

    async def history() -> tuple[int, float]:
        counted = [0]

        def took_s(batch: Sequence[WaitingRequest]) -> float:
            counted[0] += 1
            return 2.0 if counted[0] % 3 == 0 and any(one.request.sender == "liar" for one in batch) else 0.001

        asked = Asked(took_s)
        liar = asked.flood("liar", 64)
        await asyncio.sleep(5.0)
        refused, longest_s = 0, 0.0
        for _ in range(200):
            came_at = asked.loop.time()
            try:
                await asked.queue.answer(BackendRequest("m", came_at + 10.0, sender="honest"))
            except Refused:
                refused += 1
            longest_s = max(longest_s, asked.loop.time() - came_at)
        for one in liar:
            one.cancel()
        await asyncio.wait(liar)
        return refused, longest_s

    refused, longest_s = run(history(), 1)
    assert refused == 0
    assert longest_s <= 2 * 2.0 + 0.1  # the batch that runs, and its own
