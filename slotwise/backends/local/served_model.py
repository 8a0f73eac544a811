"""One version of a model that is served here: its queue, and as many workers as it is to have.

A worker that has ended is replaced; one that cannot start is tried again after pauses that grow, and `failure` says why.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from slotwise.backends.exchange import Asleep, BackendAnswer, BackendRequest, Refused
from slotwise.backends.local import queue_history
from slotwise.backends.local.ledger import Ledger
from slotwise.backends.local.model_settings import ModelSettings, WorkerNow
from slotwise.backends.local.piped_link import PipedLink
from slotwise.backends.local.queue_members import StreamWorker
from slotwise.backends.local.sequence_queue import SequenceQueue
from slotwise.backends.local.stream_queue import StreamQueue
from slotwise.backends.local.worker_link import Measured, WorkerCommand, WorkerLink
from slotwise.backends.local.worker_memory import WorkerMemory
from slotwise.worker.hosts import frames

log = logging.getLogger("slotwise.host")

PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # before another attempt, after so many that failed one after the other
SHORT_LIFE_S = 10.0  # a worker that ends sooner after it was ready, and was through with no batch
QUICK_STARTS = 4  # of those in a row: two bodies that end workers
LONGEST_PAUSE = 4  # of PAUSES_S, where workers do start
POLL_S = 0.05
GONE = "the model is not loaded any more"

Link = WorkerLink | PipedLink


class ServedModel:
    """One version of a model. Everything happens on the event loop that made it.

    measured(name, value, unit, code): takes its workers' numbers, as in LocalModel. failure: why no worker starts; "" else.
    wanted: workers that it is to have. asleep: it has none of them, until somebody asks. asked_asleep(model): somebody does.
    ends: of workers that were not told to go, by reason.
    """

    def __init__(self, settings: ModelSettings, measured: Measured = lambda name, value, unit, code: None) -> None:
        self.settings, self.measured = settings, measured
        sequences = {"limits": settings.sequences} if settings.sequences else {}
        self.queue: StreamQueue = (SequenceQueue if sequences else StreamQueue)(
            settings.batch_size,
            settings.max_batch_delay_s,
            settings.response_timeout_s,
            settings.job_queue_size,
            settings.linger,
            absent=self._absent,
            about=self._about,
            target_s=settings.target_s,
            name=settings.name,
            **sequences,
        )
        self.links: list[Link] = []
        self.ends: Counter[str] = Counter()
        self.failure = ""
        self.asleep = False
        self.asked_asleep: Callable[[ServedModel], None] = ServedModel.wake
        self.used_at = self.awake_since = self.asleep_since = asyncio.get_running_loop().time()
        self._woken_at: float | None = None  # until the first of its workers is ready
        self.start_s = 5.0  # what its last wake took
        self.wanted = self._opening = self._made = self._failed = self._short_lives = 0
        self._gpu_of: dict[str, str] = {}  # by a worker's name
        self._tasks: set[asyncio.Task[None]] = set()
        self.memory = WorkerMemory(settings.max_memory_bytes) if settings.max_memory_bytes else None
        watch = self.memory.watch(lambda: self.links, self._grown) if self.memory else None
        self._watch = asyncio.get_running_loop().create_task(watch) if watch else None

    @property
    def ledger(self) -> Ledger:
        """What became of its requests."""
        return self.queue.ledger

    async def answer(self, request: BackendRequest) -> BackendAnswer:
        """A worker's answer to just this request. Raises Refused."""
        self.used_at = self.queue.loop.time()
        if self.asleep:
            self.asked_asleep(self)
            if self.settings.refuses_asleep and self.asleep:
                raise Asleep(retry_after_s=math.ceil(self.start_s))
        return await self.queue.answer(request)

    def sleep(self) -> None:
        """Let all workers finish their batches and end. Requests wait in the queue until `wake`."""
        self.asleep_since = self.queue.loop.time()
        self._now(asleep=True)

    def wake(self) -> None:
        """Have its workers again."""
        self._woken_at = self.awake_since = self.queue.loop.time()
        self._now(asleep=False)

    def _now(self, *, asleep: bool) -> None:
        """What went wrong before says nothing of the next start."""
        self.asleep, self._failed = asleep, 0
        if self.failure != GONE:
            self.failure = ""
        self._adjust()

    @property
    def is_ready(self) -> bool:
        """Whether all its workers take requests."""
        return self.wanted > 0 and len(self.queue.workers) >= self.wanted

    def unused_s(self, now: float) -> float:
        """For how long nobody has asked it, or waited for it; 0 while it starts."""
        return 0.0 if self.ledger.open or not self.is_ready else now - max(self.queue.ended_at, self.awake_since)

    def scale(self, workers: int) -> None:
        """Have so many workers from now on; returns at once."""
        self.wanted = workers
        self._failed = 0
        self._adjust()
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """Where no worker is left and none is wanted, nobody will ever answer them."""
        if not (self.wanted or self.links):
            for one in self.queue.open_requests:
                one.refuse(503, self._absent(), retry_after_s=1)

    def workers(self) -> list[WorkerNow]:
        """Its workers now."""
        if self.asleep:
            return [WorkerNow(f"{self.id}-{i}", 0, "ASLEEP", {}) for i in range(self.wanted)]
        known = [WorkerNow(link.name, link.pid, link.status, link.got) for link in self.links]
        missing = max(0, self.wanted - sum(link.status != "UNLOADING" for link in self.links))
        return known + [WorkerNow(f"{self.id}-{self._made + i}", 0, "STARTING", {}) for i in range(missing)]

    async def close(self, patience_s: float) -> None:
        """Take no request any more, finish those that are there, and end the workers; after `patience_s` whatever they do."""
        self.failure = GONE
        if self.asleep and self.ledger.open:
            self.wake()
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
        if self._watch:
            self._watch.cancel()

    @property
    def id(self) -> str:
        """Its name and version, as they stand in logs."""
        return f"{self.settings.name}_{self.settings.version}"

    def _absent(self) -> str:
        if self.failure == GONE or not self.wanted:
            return self.failure or "the model has no workers"
        none_could = self.failure and not any(link.got for link in self.links)
        return "the model's workers do not start" if none_could else ""  # why is the operator's: it may name a path

    def _about(self, request: BackendRequest) -> bytes:
        """The text of its frame. A handler gets the query where the address has one, as at TorchServe's /invocations."""
        try:
            return frames.request_text(request.headers, request.target.partition("?")[2])
        except ValueError as error:
            raise Refused(400, str(error)) from None

    def _adjust(self) -> None:
        """Start workers that are missing, and let go those that are too many: first of those that still start."""
        if self.memory:
            self.memory.settle(self.links, self.wanted)
        kept = [link for link in self.links if link.status != "UNLOADING"]
        wanted = 0 if self.asleep else self.wanted
        leaving = len(self.memory.leaving) if self.memory and wanted else 0
        surplus = len(kept) + self._opening - wanted - leaving
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
        name = settings.name_worker() or f"{self.id}-{self._made}"
        if settings.gpus is not None and (gpu := settings.gpus.take()):
            environ["CUDA_VISIBLE_DEVICES"] = self._gpu_of[name] = gpu
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
                log.warning("%s knows no frames: `slotwise renew` makes it quicker here", settings.archive.name)
                about |= {"archive": settings.archive, "model_dir": settings.model_dir, "environ": environ}
                link = await PipedLink.open(settings.start_timeout_s, batch_size=settings.batch_size, **about)
        except Exception as error:  # whatever it is, it is tried again
            self._opening -= 1
            self._give_back_gpu(name)
            self._fail(f"no process can be started: {getattr(error, 'strerror', None) or error}")
            return
        self._opening -= 1
        self.links.append(link)
        self._adjust()  # it may have been scaled down meanwhile

    def _started(self, link: Link) -> None:
        if self.failure != GONE:
            self.failure = ""
        self._failed = 0
        self.awake_since = self.queue.loop.time()
        if self._woken_at is not None:
            self.start_s, self._woken_at = max(1.0, self.awake_since - self._woken_at), None
        if self.memory:
            self.memory.started(link)
            self._adjust()

    def _grown(self, count: int) -> None:
        """Workers have come to take too much memory."""
        self.ends["memory"] += count
        self._adjust()

    def _ended(self, link: Link) -> None:
        """A worker is gone: start another one, at once unless several have lived but a moment, and done nothing."""
        self.links.remove(link)
        if self.memory:
            self.memory.ended(link)
        self._give_back_gpu(link.name)
        if not link.worker.retiring:
            self.ends[end_of(link.why, started=bool(link.got))] += 1
            self._write_history(link)
        loop = asyncio.get_running_loop()
        self._refuse_waiting()
        if link.worker.retiring:
            self._adjust()
        elif link.got:
            if self.failure != GONE:
                self.failure = ""  # one could start, whatever another's trouble was: the next may, too
            short = loop.time() - link.worker.joined_at < SHORT_LIFE_S and not link.worker.over_at
            self._short_lives = self._short_lives + 1 if short else 0
            loop.call_later(PAUSES_S[min(max(0, self._short_lives - QUICK_STARTS), LONGEST_PAUSE)], self._adjust)
        else:
            self._fail(link.reason)

    def _give_back_gpu(self, worker: str) -> None:
        if self.settings.gpus is not None:
            self.settings.gpus.give_back(self._gpu_of.pop(worker, ""))

    def _write_history(self, link: Link) -> None:
        """Write down what led to a worker's death, where it has answered batches; in a thread."""
        settings = self.settings
        if settings.histories is None or not link.got or isinstance(link.worker, StreamWorker):
            return
        queue, number = self.queue, link.worker.number
        name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{self.id}-{number}.jsonl"
        about = {key: getattr(settings, key) for key in queue_history.SETTINGS} | {"died": number}
        kept = queue.history.kept(queue.open_requests, queue.workers)
        log.warning("worker %d of %s: what led to its end is in %s", number, self.id, settings.histories / name)
        asyncio.get_running_loop().run_in_executor(None, queue_history.write, settings.histories / name, about, kept)

    def _fail(self, why: str) -> None:
        if self.failure != GONE:
            self.failure = why
        self._failed += 1
        log.error("a worker of %s does not start: %s", self.id, why)
        pause_s = PAUSES_S[min(self._failed, len(PAUSES_S) - 1)]
        asyncio.get_running_loop().call_later(pause_s, self._adjust)


def end_of(why: str, *, started: bool) -> str:
    """One word of a few for why a worker ended, for the metrics."""
    if not started:
        return "start"
    kinds = {"it did not answer": "slow", "it has said nothing": "silent", "it broke the protocol": "protocol"}
    return next((kind for begin, kind in kinds.items() if why.startswith(begin)), "died")
