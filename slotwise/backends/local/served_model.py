"""One version of a model that is served here: its queue, and as many workers as it is to have.

A worker that has ended is replaced; one that cannot start is tried again after pauses that grow, and `failure` says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotwise.archive.guarding.foreign import GUARD
from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused
from slotwise.backends.local.dispatcher import Linger
from slotwise.backends.local.ledger import Ledger
from slotwise.backends.local.piped_link import PipedLink
from slotwise.backends.local.prints import Prints
from slotwise.backends.local.stream_queue import StreamQueue
from slotwise.backends.local.worker_link import Measured, WorkerCommand, WorkerLink
from slotwise.worker.hosts import frames
from slotwise.worker.hosts.child import START_TIMEOUT_S

log = logging.getLogger("slotwise.host")

PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # before another attempt, after so many that failed one after the other
SHORT_LIFE_S = 10.0  # a worker that ends sooner after it was ready
QUICK_STARTS = 4  # of those in a row: two bodies that end workers
LONGEST_PAUSE = 4  # of PAUSES_S, where workers do start
POLL_S = 0.05
GONE = "the model is not loaded any more"

Link = WorkerLink | PipedLink


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How one version of a model is served.

    model_dir: its archive, extracted and verified; its workers share it. environ: of its workers, whole. prints: for their
    output. gpus: workers go round so many. start_timeout_s: for loading, warming up and proving it. repeatable: whether its
    author lets a request be sent a second time. name_worker(): a name for a new worker; "" for one of its own.
    """

    name: str
    version: str
    archive: Path
    model_dir: Path
    environ: Mapping[str, str]
    prints: Prints
    batch_size: int
    max_batch_delay_s: float = 0.0
    response_timeout_s: float = 120.0
    job_queue_size: int = 1000
    linger: Linger = "free"
    target_s: float = 0.0
    gpus: int = 0
    start_timeout_s: float = START_TIMEOUT_S
    repeatable: bool = True
    name_worker: Callable[[], str] = lambda: ""

    @property
    def module(self) -> str:
        """What its workers run; "" where the archive was built before there were frames."""
        for package, folder in ((f"{GUARD}.hosts", f"{GUARD}/hosts"), ("slotwise.worker.hosts", "slotwise/worker/hosts")):
            if (self.model_dir / folder).is_dir():
                return f"{package}.framed" if (self.model_dir / folder / "framed.py").is_file() else ""
        return ""


@dataclass(frozen=True)
class WorkerNow:
    """One worker as it is now. status: STARTING, READY or UNLOADING. pid: 0 while it starts. got: what it says it runs on."""

    id: str
    pid: int
    status: str
    got: Mapping[str, Any]


class ServedModel:
    """One version of a model. Everything happens on the event loop that made it.

    measured(name, value, unit, code): takes its workers' numbers, as in LocalModel. failure: why no worker starts; "" else.
    wanted: workers that it is to have. ends: of workers that were not told to go, by reason.
    """

    def __init__(self, settings: ModelSettings, measured: Measured = lambda name, value, unit, code: None) -> None:
        self.settings, self.measured = settings, measured
        self.queue = StreamQueue(
            settings.batch_size,
            settings.max_batch_delay_s,
            settings.response_timeout_s,
            settings.job_queue_size,
            settings.linger,
            absent=self._absent,
            about=self._about,
            target_s=settings.target_s,
            name=settings.name,
        )
        self.links: list[Link] = []
        self.ends: Counter[str] = Counter()
        self.failure = ""
        self.wanted = self._opening = self._made = self._failed = self._short_lives = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def ledger(self) -> Ledger:
        """What became of its requests."""
        return self.queue.ledger

    async def answer(self, request: BackendRequest) -> BackendAnswer:
        """A worker's answer to just this request. Raises Refused."""
        return await self.queue.answer(request)

    def scale(self, workers: int) -> None:
        """Have so many workers from now on; returns at once."""
        self.wanted = workers
        self._failed = 0
        self._adjust()

    def workers(self) -> list[WorkerNow]:
        """Its workers now."""
        known = [WorkerNow(link.name, link.pid, link.status, link.got) for link in self.links]
        missing = max(0, self.wanted - sum(link.status != "UNLOADING" for link in self.links))
        return known + [WorkerNow(f"{self._id}-{self._made + i}", 0, "STARTING", {}) for i in range(missing)]

    async def close(self, patience_s: float) -> None:
        """Take no request any more, finish those that are there, and end the workers; after `patience_s` whatever they do."""
        self.failure = GONE
        until = asyncio.get_running_loop().time() + patience_s
        while self.ledger.open and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_S)
        self.scale(0)
        while self.links and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_S)
        for link in list(self.links):
            link.end("it did not end in time")
        while self.links:
            await asyncio.sleep(POLL_S)

    @property
    def _id(self) -> str:
        return f"{self.settings.name}_{self.settings.version}"

    def _absent(self) -> str:
        if self.failure == GONE or not self.wanted:
            return self.failure or "the model has no workers"
        return f"the model's workers do not start: {self.failure}" if self.failure else ""

    def _about(self, request: BackendRequest) -> bytes:
        """The text of its frame. A handler gets the query where the address has one, as at TorchServe's /invocations."""
        try:
            return frames.request_text(request.headers, request.target.partition("?")[2])
        except ValueError as error:
            raise Refused(400, str(error)) from None

    def _adjust(self) -> None:
        """Start workers that are missing, and let go those that are too many: first of those that still start."""
        kept = [link for link in self.links if link.status != "UNLOADING"]
        surplus = len(kept) + self._opening - self.wanted
        newest_first = sorted(reversed(kept), key=lambda link: link.status == "READY")
        for link in newest_first[: max(0, surplus)]:
            link.retire()
        for _ in range(-surplus):
            self._opening += 1
            task = asyncio.get_running_loop().create_task(self._open())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open(self) -> None:
        settings = self.settings
        environ = dict(settings.environ)
        if settings.gpus:
            environ["CUDA_VISIBLE_DEVICES"] = str(self._made % settings.gpus)
        name = settings.name_worker() or f"{self._id}-{self._made}"
        self._made += 1
        about: dict[str, Any] = {
            "name": name,
            "queue": self.queue,
            "started": self._started,
            "ended": self._ended,
            "measured": self.measured,
        }
        try:
            link: Link
            if settings.module:
                command = WorkerCommand(
                    module=settings.module,
                    model_dir=settings.model_dir,
                    environ=environ,
                    prints=settings.prints,
                    batch_size=settings.batch_size,
                )
                link = await WorkerLink.open(settings.start_timeout_s, command=command, **about)
            else:
                batch_size = settings.batch_size
                log.warning("%s knows no frames: `slotwise renew` makes it quicker here", settings.archive.name)
                link = await PipedLink.open(
                    settings.start_timeout_s, archive=settings.archive, environ=environ, batch_size=batch_size, **about
                )
        except OSError as error:
            self._opening -= 1
            self._fail(f"no process can be started: {error.strerror or error}")
            return
        self._opening -= 1
        self.links.append(link)
        self._adjust()  # it may have been scaled down meanwhile

    def _started(self, link: Link) -> None:
        if self.failure != GONE:
            self.failure = ""
        self._failed = 0

    def _ended(self, link: Link) -> None:
        """A worker is gone: start another one, at once unless several have lived but a moment."""
        self.links.remove(link)
        if not link.worker.retiring:
            self.ends[end_of(link.why, started=bool(link.got))] += 1
        loop = asyncio.get_running_loop()
        if link.worker.retiring:
            self._adjust()
        elif link.got:
            self._short_lives = self._short_lives + 1 if loop.time() - link.worker.joined_at < SHORT_LIFE_S else 0
            loop.call_later(PAUSES_S[min(max(0, self._short_lives - QUICK_STARTS), LONGEST_PAUSE)], self._adjust)
        else:
            self._fail(link.reason)

    def _fail(self, why: str) -> None:
        if self.failure != GONE:
            self.failure = why
        self._failed += 1
        log.error("a worker of %s does not start: %s", self._id, why)
        pause_s = PAUSES_S[min(self._failed, len(PAUSES_S) - 1)]
        asyncio.get_running_loop().call_later(pause_s, self._adjust)


def end_of(why: str, *, started: bool) -> str:
    """One word of a few for why a worker ended, for the metrics."""
    if not started:
        return "start"
    kinds = {"it did not answer": "slow", "it has said nothing": "silent", "it broke the protocol": "protocol"}
    return next((kind for begin, kind in kinds.items() if why.startswith(begin)), "died")
