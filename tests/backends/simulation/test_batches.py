"""When a batch is formed, in virtual time: nobody waits for nobody, but a moment for those who were just answered."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pytest

from slotwise.backends.exchange import BackendAnswer, BackendRequest
from slotwise.backends.local.model_queue import HOLD, Linger, ModelQueue
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


def test_who_is_to_be_alone_has_no_mates() -> None:
    at_s = (0, 0.1, 0.2, 0.3, 0.4)
    assert batches(1, *at_s, alone={2}) == [(0, 1), (1, 1), (2, 1), (3, 2)]
    assert batches(1, *at_s, alone={1}) == [(0, 1), (1, 1), (2, 3)]
