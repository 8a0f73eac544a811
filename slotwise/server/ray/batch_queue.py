"""Gather a replica's requests into batches while its worker is busy.

`@serve.batch` of Ray 2.60 forms a batch of what comes within the delay also while another batch runs, and adds nothing to it
while it waits for its turn: under load a replica had many small batches. Here a batch is taken when the worker is free, as on
TorchServe.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, eq=False)
class Waiting(Generic[RequestT, AnswerT]):
    """A request, and where its answer goes."""

    request: RequestT
    answer: asyncio.Future[AnswerT]


class BatchQueue(Generic[RequestT, AnswerT]):
    """Hands `answer_batch` up to batch_size requests at a time, in order of arrival; one batch at a time.

    answer_batch gives exactly one answer a request, in order. What it raises, every request of its batch raises.
    max_batch_delay_s: how long a batch that is not full waits for more, from when the worker is free.
    """

    def __init__(
        self,
        answer_batch: Callable[[list[RequestT]], Awaitable[Sequence[AnswerT]]],
        batch_size: int,
        max_batch_delay_s: float,
    ) -> None:
        self.answer_batch = answer_batch
        self.batch_size, self.max_batch_delay_s = batch_size, max_batch_delay_s
        self.waiting: deque[Waiting[RequestT, AnswerT]] = deque()
        self.arrived = asyncio.Event()
        self.running: asyncio.Task[None] | None = None

    async def answer(self, request: RequestT) -> AnswerT:
        """One request's answer, from a batch with others. A request that is cancelled while it waits is left out."""
        waiting = Waiting[RequestT, AnswerT](request, asyncio.get_running_loop().create_future())
        self.waiting.append(waiting)
        self.arrived.set()
        if self.running is None or self.running.done():
            self.running = asyncio.create_task(self._answer_all(), context=contextvars.Context())  # of no single request
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):  # it is in a batch already
                self.waiting.remove(waiting)
            raise

    async def _answer_all(self) -> None:
        while self.waiting:
            await self._fill()
            batch = [self.waiting.popleft() for _ in range(min(self.batch_size, len(self.waiting)))]
            if batch:
                await self._answer(batch)

    async def _fill(self) -> None:
        """Wait for a full batch, as long as the delay allows."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.max_batch_delay_s):
                while len(self.waiting) < self.batch_size:
                    self.arrived.clear()
                    await self.arrived.wait()

    async def _answer(self, batch: Sequence[Waiting[RequestT, AnswerT]]) -> None:
        try:
            answers = await self.answer_batch([one.request for one in batch])
            if len(answers) != len(batch):  # before the first one is handed out: nobody knows whose they are
                raise ValueError(f"{len(answers)} answers to {len(batch)} requests")
            for one, answer in zip(batch, answers, strict=True):
                if not one.answer.done():
                    one.answer.set_result(answer)
        except Exception as error:  # whatever it is, the next batch is not to wait for ever
            for one in batch:
                if not one.answer.done():
                    one.answer.set_exception(error)
