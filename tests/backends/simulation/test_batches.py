"""When a batch is formed, and of whom, in virtual time.

Nobody waits for nobody, but a moment for those who were just answered. Senders take turns. Who would be late is refused.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Collection, Sequence

import pytest

from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused
from slotwise.backends.local.batch_cost import ENOUGH, BatchCost
from slotwise.backends.local.dispatcher import HOLD, Linger
from slotwise.backends.local.model_queue import ModelQueue
from slotwise.backends.local.queue_members import BatchWorker, WaitingRequest
from tests.backends.simulation.virtual_loop import run

BATCH_S, DELAY_S = 1.0, 0.02


class Served:
    """A queue with workers that take a second for any batch. batches: when each was sent, and how many were in it."""

    def __init__(self, workers: int, linger: Linger = "free") -> None:
        self.loop = asyncio.get_running_loop()
        self.queue = ModelQueue(4, DELAY_S, linger=linger)
        self.batches: list[tuple[float, int]] = []
        for _ in range(workers):
            self.queue.joined(self.worker())

    def worker(self) -> BatchWorker:
        def send(batch: Sequence[WaitingRequest]) -> None:
            self.batches.append((round(self.loop.time(), 3), len(batch)))
            self.loop.call_later(BATCH_S, done, batch)

        def done(batch: Sequence[WaitingRequest]) -> None:
            for one in batch:
                self.queue.answered(worker, one.id, BackendAnswer(200, [], b""))
            self.queue.done(worker, dead=False)

        worker = BatchWorker(send, lambda why: None)
        worker.heard_at = float("inf")
        return worker

    async def asked(self, *at_s: float, alone: Collection[int] = ()) -> None:
        """Requests that come at these times. alone: which of them are to have no mates."""

        async def one(i: int, when: float) -> None:
            await asyncio.sleep(when - self.loop.time())
            await self.queue.answer(BackendRequest("m", 1000.0, alone=i in alone))

        await asyncio.gather(*(one(i, when) for i, when in enumerate(at_s)))


def batches(workers: int, *at_s: float, linger: Linger = "free", alone: Collection[int] = ()) -> list[tuple[float, int]]:
    async def history() -> list[tuple[float, int]]:
        served = Served(workers, linger)
        await served.asked(*at_s, alone=alone)
        return served.batches

    return run(history(), 1)


@pytest.mark.parametrize(
    ("at_s", "sent"),
    [
        ((0, 1.1, 2.2), [(0, 1), (1.1, 1), (2.2, 1)]),  # a client alone waits for nobody
        ((0, 0, 0, 1.001, 1.005, 1.010), [(0, 3), (1.010, 3)]),  # as many as were answered
        ((0, 0, 0, 1.001, 1.005), [(0, 3), (1.020, 2)]),  # or as come in time
        ((0, 0, 0, 1.5), [(0, 3), (1.5, 1)]),
    ],
)
def test_one_worker_waits_a_moment_for_whom_it_has_answered(at_s: tuple[float, ...], sent: list[tuple[float, int]]) -> None:
    assert DELAY_S < HOLD * BATCH_S
    assert batches(1, *at_s) == sent


def test_another_worker_that_is_free_takes_them_at_once() -> None:
    assert batches(2, 0, 0, 0, 1.001) == [(0, 3), (1.001, 1)]


def test_exact_waits_as_torchserve_does() -> None:
    assert batches(1, 0, 0.01, 5.0, linger="exact") == [(DELAY_S, 2), (5.0 + DELAY_S, 1)]


def test_what_is_answered_goes_without_the_garbage_collector() -> None:
    async def history() -> list[object]:
        served = Served(1)
        requests = [BackendRequest("m", 1000.0) for _ in range(8)]
        gone = [weakref.ref(one) for one in requests]
        await asyncio.gather(*map(served.queue.answer, requests))
        requests.clear()
        await asyncio.sleep(1)
        await served.queue.answer(BackendRequest("m", 1000.0))  # a worker keeps its last batch
        return [ref() for ref in gone]

    gc.disable()
    try:
        assert run(history(), 1) == [None] * 8
    finally:
        gc.enable()


def test_who_is_to_be_alone_has_no_mates() -> None:
    at_s = (0, 0.1, 0.2, 0.3, 0.4)
    assert batches(1, *at_s, alone={2}) == [(0, 1), (1, 1), (2, 1), (3, 2)]
    assert batches(1, *at_s, alone={1}) == [(0, 1), (1, 1), (2, 3)]


HOG, LIGHT = "hog", "light"


class Crowd(Served):
    """One sender that always has `many` under way, beside one with a single request at a time."""

    def __init__(self, workers: int, many: int) -> None:
        super().__init__(workers)
        self.many, self.sent = many, list[list[str]]()
        self.waits_s: list[float] = []
        self.formed_meanwhile: list[int] = []

    def worker(self) -> BatchWorker:
        worker = super().worker()
        send = worker.send

        def seen(batch: Sequence[WaitingRequest]) -> None:
            self.sent.append([one.request.sender for one in batch])
            send(batch)

        worker.send = seen
        return worker

    async def ask(self, sender: str, times: int) -> None:
        for _ in range(times):
            came_at, before = self.loop.time(), len(self.sent)
            await self.queue.answer(BackendRequest("m", 1000.0, sender=sender))
            if sender == LIGHT:
                self.waits_s.append(self.loop.time() - came_at)
                with_it = next(i for i, batch in enumerate(self.sent[before:]) if LIGHT in batch)
                self.formed_meanwhile.append(with_it)

    async def both(self) -> None:
        hog = [asyncio.ensure_future(self.ask(HOG, 1000)) for _ in range(self.many)]
        await asyncio.sleep(0.5)
        await self.ask(LIGHT, 20)
        for one in hog:
            one.cancel()
        await asyncio.wait(hog)


@pytest.mark.parametrize("workers", [1, 3])
def test_who_has_512_under_way_delays_a_single_request_by_no_more_than_the_batch_that_runs(workers: int) -> None:
    """The very next batch that is formed has it; so it waits for one batch at most, and is answered with its own."""

    async def history() -> Crowd:
        crowd = Crowd(workers, 512)
        await crowd.both()
        return crowd

    crowd = run(history(), 1)
    assert crowd.formed_meanwhile == [0] * 20
    assert max(crowd.waits_s) <= 2 * BATCH_S + DELAY_S
    assert all(len(batch) == 4 for batch in crowd.sent[:-workers] if LIGHT not in batch)


class Told(BatchCost):
    """Batches are said to take so long, whatever they take."""

    def __init__(self, batch_s: float) -> None:
        super().__init__()
        for _ in range(ENOUGH):
            super().learn(1, batch_s)
        self.each_s, self.request_s = batch_s, 0.0

    def learn(self, n: int, took_s: float) -> None:
        """Nothing is learned."""


def refusals(*, asked: Sequence[tuple[float, float]], free: int = 0) -> list[tuple[float, int, bool]]:
    """When each request that was refused came, its status, and whether it was refused at once. asked: (when, its deadline).

    A worker has a batch of four in hand; `free` others have none.
    """

    async def history() -> list[tuple[float, int, bool]]:
        served, refused = Served(0), list[tuple[float, int, bool]]()
        served.queue.dispatcher.cost = Told(BATCH_S)
        running = [asyncio.ensure_future(served.queue.answer(BackendRequest("m", 1000.0))) for _ in range(4)]
        await asyncio.sleep(0)
        for _ in range(1 + free):
            served.queue.joined(served.worker())

        async def ask(when: float, deadline: float) -> None:
            await asyncio.sleep(when)
            try:
                await served.queue.answer(BackendRequest("m", deadline))
            except Refused as said:
                refused.append((when, said.status, abs(served.loop.time() - when) < 1e-6))

        await asyncio.gather(*running, *(ask(*one) for one in asked))
        return sorted(refused)

    return run(history(), 1)


def test_who_cannot_be_answered_in_time_is_refused_at_once() -> None:
    assert refusals(asked=[(0.5, 1.9)]) == [(0.5, 504, True)]  # the batch that runs is over at 1.0, its own at 2.0
    assert refusals(asked=[(0.5, 2.1)]) == []
    # Four are before the last one: that is one batch more.
    four = [(0.5, 900.0)] * 4
    assert refusals(asked=[*four, (0.6, 2.9)]) == [(0.6, 504, True)]
    assert refusals(asked=[*four, (0.6, 3.1)]) == []


def test_those_whose_clients_have_gone_make_nobody_late() -> None:
    async def history() -> list[tuple[float, int]]:
        served = Served(1)
        served.queue.dispatcher.cost = Told(BATCH_S)
        left = [BackendRequest("m", 1000.0) for _ in range(16)]
        asked = [asyncio.ensure_future(served.queue.answer(one)) for one in left]
        await asyncio.sleep(0.5)
        for one in left:
            one.leave()
        await served.queue.answer(BackendRequest("m", 2.5))  # behind the batch that runs, not behind the 12 that waited
        await asyncio.gather(*asked, return_exceptions=True)
        return served.batches

    assert run(history(), 1) == [(0, 4), (1.0 + DELAY_S, 1)]


def test_who_is_late_when_its_turn_comes_is_not_sent() -> None:
    async def history() -> list[tuple[float, int]]:
        served = Served(1)
        served.queue.dispatcher.cost = Told(0.1)  # but the batch that runs takes a second
        deadlines = (1000.0, 1.05, 1000.0)
        late = [asyncio.ensure_future(served.queue.answer(BackendRequest("m", deadline))) for deadline in deadlines[:1]]
        await asyncio.sleep(0.5)
        late += [asyncio.ensure_future(served.queue.answer(BackendRequest("m", deadline))) for deadline in deadlines[1:]]
        said = await asyncio.gather(*late, return_exceptions=True)
        assert isinstance(said[1], Refused)
        assert said[1].status == 504
        return served.batches

    assert run(history(), 1) == [(0, 1), (1, 1)]


def test_where_a_worker_is_free_nobody_is_refused_and_what_was_learned_wrong_is_learned_again() -> None:
    assert refusals(asked=[(0.5, 1.4)], free=1) == [(0.5, 504, False)]  # it was tried

    async def history() -> None:
        served = Served(1)
        for i in range(20):
            served.queue.dispatcher.cost.learn(1 + i % 4, 60.0)
        for i in range(200):
            await served.queue.answer(BackendRequest("m", i + 2.0))
        assert served.queue.dispatcher.cost.of(1) < 2 * BATCH_S  # it was 60

    run(history(), 1)


def test_retry_after_says_how_long_those_take_that_wait() -> None:
    async def history() -> int:
        served = Served(1)
        served.queue.dispatcher.job_queue_size = 20
        for i in range(20):
            served.queue.dispatcher.cost.learn(1 + i % 4, BATCH_S)
        asked = [asyncio.ensure_future(served.queue.answer(BackendRequest("m", 1000.0))) for _ in range(4)]
        await asyncio.sleep(0.1)
        asked += [asyncio.ensure_future(served.queue.answer(BackendRequest("m", 1000.0))) for _ in range(20)]
        await asyncio.sleep(0.1)
        with pytest.raises(Refused) as refused:
            await served.queue.answer(BackendRequest("m", 1000.0))
        await asyncio.gather(*asked, return_exceptions=True)
        return refused.value.retry_after_s

    assert run(history(), 1) in (5, 6)  # five batches of four


def test_a_worker_has_its_next_batch_before_the_answers_of_its_last_one_go_on() -> None:
    async def history() -> list[str]:
        queue, happened = ModelQueue(2), list[str]()
        worker = BatchWorker(lambda batch: happened.append("sent"), lambda why: None)
        queue.joined(worker)

        async def ask() -> None:
            await queue.answer(BackendRequest("m", queue.loop.time() + 1000))
            happened.append("answered")

        asking = [asyncio.ensure_future(ask()) for _ in range(4)]
        while asking:
            await asyncio.sleep(0)
            if worker.busy:
                for one in list(worker.in_hand):
                    queue.answered(worker, one, BackendAnswer(200, [], b""))
                queue.done(worker, dead=False)
                await asyncio.sleep(0)
            asking = [one for one in asking if not one.done()]
        return happened

    assert asyncio.run(history()) == ["sent", "sent", "answered", "answered", "answered", "answered"]
