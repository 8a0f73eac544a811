"""One worker of an archive that was built before there were frames: it answers through pipes, a batch at a time."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from slotwise.archive.local_model import LocalAnswer, LocalModel
from slotwise.backends.exchange import BackendAnswer
from slotwise.backends.local.model_queue import ModelQueue
from slotwise.backends.local.queue_members import BatchWorker, WaitingRequest
from slotwise.backends.local.worker_link import Measured
from slotwise.backends.request_way import seen_now, sent_together
from slotwise.errors import SlotwiseError
from slotwise.worker.hosts import frames

log = logging.getLogger("slotwise.host")


@dataclass(eq=False)
class PipedLink:
    """One worker, as WorkerLink is one. It says nothing while it works, so only its response timeout ends it."""

    name: str
    archive: Path
    model_dir: Path
    environ: Mapping[str, str]
    batch_size: int
    queue: ModelQueue
    started: Callable[[PipedLink], None]
    ended: Callable[[PipedLink], None]
    measured: Measured = lambda name, value, unit, code: None
    status: str = "STARTING"
    why: str = ""
    got: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    async def open(cls, start_timeout_s: float, **about: Any) -> PipedLink:
        """Start a worker; returns while it loads."""
        link = cls(**about)
        link.task = asyncio.create_task(link._guarded(link._load(start_timeout_s)))
        return link

    def __post_init__(self) -> None:
        self.worker = BatchWorker(self.send, self.end, heard_at=float("inf"))
        self.model: LocalModel | None = None
        self.starting: subprocess.Popen[bytes] | None = None
        self.task: asyncio.Task[None]
        self.over = False

    @property
    def pid(self) -> int:
        """The process's pid; 0 while it starts."""
        return self.model.child.pid if self.model else 0

    @property
    def reason(self) -> str:
        """Why it did not start."""
        return self.why

    def send(self, batch: Sequence[WaitingRequest]) -> None:
        """Give it a batch."""
        self.task = asyncio.create_task(self._guarded(self._answer(batch)))

    def retire(self) -> None:
        """Let it finish its batch, and end."""
        self.status, self.worker.retiring = "UNLOADING", True
        if not self.worker.busy:
            self._end()

    def end(self, why: str) -> None:
        """End it at once."""
        if not self.why:
            self.why = why
            log.error("worker %d of %s is ended: %s", self.pid, self.archive.name, why)
        if self.model:
            self.model.child.kill()  # who waits for it hears that
        self._end()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Whatever goes wrong ends the worker: it is tried again, and what it has in hand goes on elsewhere."""
        try:
            await work
        except Exception as error:
            self.end(f"{type(error).__name__}: {error}")

    async def _load(self, timeout_s: float) -> None:
        try:
            self.model = await asyncio.to_thread(
                PipedModel,
                self,
                batch_size=self.batch_size,
                environ=self.environ,
                measured=self.measured,
                start_timeout_s=timeout_s,
            )
        except SlotwiseError as error:
            self.why = self.why or error.message
            self._end()
            return
        if self.over:
            self.model.close()
            return
        self.status, self.got = "READY", self.model.started
        self.queue.joined(self.worker)
        self.worker.heard_at = float("inf")
        self.started(self)

    async def _answer(self, batch: Sequence[WaitingRequest]) -> None:
        assert self.model is not None
        since, asked = time.time(), [one.request for one in batch]
        known = sent_together(self.name, asked)  # a worker of then reports nothing
        requests = []
        for one in batch:
            headers, query = frames.request_about(one.about)
            requests.append((one.request.body, headers, dict(parse_qsl(query, keep_blank_values=True))))
        try:
            answers = await asyncio.to_thread(self.model.answer, requests)
        except SlotwiseError as error:
            if (known := seen_now(known, self.name, asked, since)) is not None:
                known.fail("the worker ended")
            self.end(error.message)
            return
        if self.over:
            return
        for one, answer in zip(batch, answers, strict=True):
            self.queue.answered(self.worker, one.id, _answer(answer))
        dead = not self.model.alive
        self.queue.done(self.worker, dead=dead)
        if dead or self.worker.retiring:
            self._end()

    def _end(self) -> None:
        if self.over:
            return
        self.over, self.status = True, "UNLOADING"
        if self.starting:
            self.starting.kill()
        if self.worker in self.queue.workers:
            self.queue.ended(self.worker)
        closing = asyncio.ensure_future(asyncio.to_thread(self.model.close if self.model else lambda: None))
        closing.add_done_callback(lambda _: self.ended(self))


class PipedModel(LocalModel):
    """A LocalModel whose link may end it while it starts."""

    def __init__(self, link: PipedLink, **settings: Any) -> None:
        self.link = link
        super().__init__(link.archive, model_dir=link.model_dir, **settings)

    def start(self, batch_size: int) -> dict[str, Any]:
        """See LocalModel."""
        self.link.starting = self.child
        if self.link.over:
            self.child.kill()
        return super().start(batch_size)


def _answer(answer: LocalAnswer) -> BackendAnswer:
    headers = {"content-type": answer.content_type} if answer.content_type else {}
    lines = [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in (headers | answer.headers).items()]
    return BackendAnswer(answer.status, lines, answer.body)
