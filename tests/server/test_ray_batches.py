"""A replica's batches. Needs no Ray."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from slotwise.server.ray.batch_queue import BatchQueue

LONG_S = 600.0


class Worker:
    """Answers a number with its double, once it may; remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.started = asyncio.Event()
        self.free = asyncio.Event()

    async def answer(self, numbers: list[int]) -> list[int]:
        self.batches.append(numbers)
        self.started.set()
        await self.free.wait()
        if 13 in numbers:
            raise ValueError("13")
        return [2 * number for number in numbers]


def test_what_comes_while_a_batch_runs_fills_the_next() -> None:
    async def run() -> None:
        worker = Worker()
        queue = BatchQueue(worker.answer, 4, 0.0)
        first = asyncio.create_task(queue.answer(0))
        await worker.started.wait()
        others = []
        for number in range(1, 10):  # one after the other, each later than the delay
            others.append(asyncio.create_task(queue.answer(number)))
            await asyncio.sleep(0.001)
        worker.free.set()
        assert await asyncio.gather(first, *others) == [2 * number for number in range(10)]
        assert worker.batches == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9]]

    asyncio.run(run())


def test_a_batch_that_is_full_waits_no_longer() -> None:
    async def run() -> None:
        worker = Worker()
        worker.free.set()
        queue = BatchQueue(worker.answer, 3, LONG_S)
        assert await asyncio.wait_for(asyncio.gather(*(queue.answer(number) for number in range(3))), 60) == [0, 2, 4]
        assert worker.batches == [[0, 1, 2]]

    asyncio.run(run())


def test_what_a_batch_raises_reaches_its_requests_only() -> None:
    async def run() -> None:
        worker = Worker()
        worker.free.set()
        queue = BatchQueue(worker.answer, 2, 0.0)
        results = await asyncio.gather(*(queue.answer(number) for number in (1, 13, 2, 3)), return_exceptions=True)
        assert [repr(result) for result in results] == ["ValueError('13')", "ValueError('13')", "4", "6"]

    asyncio.run(run())


@pytest.mark.parametrize("running", [False, True])
def test_who_goes_away_takes_no_place(running: bool) -> None:
    async def run() -> None:
        worker = Worker()
        queue = BatchQueue(worker.answer, 2, 0.0 if running else LONG_S)
        gone = asyncio.create_task(queue.answer(0))
        if running:
            await worker.started.wait()
        else:
            await asyncio.sleep(0)
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
        others = asyncio.gather(queue.answer(1), queue.answer(2))
        worker.free.set()
        assert await asyncio.wait_for(others, 60) == [2, 4]
        assert worker.batches == ([[0], [1, 2]] if running else [[1, 2]])

    asyncio.run(run())


def test_a_batch_with_an_answer_too_few_gives_nobody_one() -> None:
    async def main() -> list[object]:
        async def short(requests: list[int]) -> list[int]:
            return requests[1:]

        queue = BatchQueue(short, 3, LONG_S)
        return await asyncio.gather(*(queue.answer(i) for i in range(3)), return_exceptions=True)

    assert [type(answer) for answer in asyncio.run(main())] == [ValueError] * 3
