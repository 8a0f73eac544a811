"""One worker of a model: its process, and the front's end of the socket to it (slotwise.worker.hosts.frames).

Whatever the worker says that is no frame, or was not to be said, ends it; the log says which worker, and what it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from slotwise.backends.exchange import BackendAnswer
from slotwise.backends.local.prints import Printed, Prints
from slotwise.backends.local.queue_members import BatchWorker, LyingWorker, StreamWorker, WaitingRequest
from slotwise.backends.local.stream_queue import StreamQueue
from slotwise.backends.request_way import BatchReport, BatchWay, seen_now, sent_together
from slotwise.worker.hosts import frames
from slotwise.worker.hosts.frames import BrokenFrame, Frame, FrameReader

log = logging.getLogger("slotwise.host")

BUFFER_BYTES = 1 << 22  # of the socket, as far as the system lets anybody have it
REAP_S = 5.0
PACKAGES = "SLOTWISE_PACKAGES"  # a variable of the worker's: further folders of modules, after the archive's own

Measured = Callable[[str, float, str, int | None], None]


@dataclass(frozen=True, kw_only=True)
class WorkerCommand:
    """How a worker is started. module: what it runs. prints: where its output goes."""

    module: str
    model_dir: Path
    environ: Mapping[str, str]
    prints: Prints
    batch_size: int

    def start(self, descriptor: int, output: int) -> subprocess.Popen[bytes]:
        """Start the process, which gets these descriptors as its socket and its output."""
        packages = [self.environ[PACKAGES]] if PACKAGES in self.environ else []
        return subprocess.Popen(
            [sys.executable, "-P", "-m", self.module, str(descriptor)],
            cwd=self.model_dir,
            env={**self.environ, "PYTHONPATH": os.pathsep.join([str(self.model_dir), *packages])},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(descriptor,),
        )


@dataclass(eq=False)
class WorkerLink(asyncio.Protocol):
    """One worker. started(link), ended(link): called once each, on the event loop; `why` says why it ended.

    status: STARTING, READY or UNLOADING. got: what it says that it runs on. name: that no other worker has.
    """

    name: str
    command: WorkerCommand
    queue: StreamQueue
    started: Callable[[WorkerLink], None]
    ended: Callable[[WorkerLink], None]
    measured: Measured = lambda name, value, unit, code: None
    status: str = "STARTING"
    why: str = ""
    got: Mapping[str, Any] = field(default_factory=dict)
    batch: BatchWay | None = None  # that it has, where somebody knows of it
    may_report: bool = False

    @classmethod
    async def open(cls, start_timeout_s: float, **about: Any) -> WorkerLink:
        """Start a worker; returns while it loads. Raises OSError where no process can be started."""
        link = cls(**about)
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        try:
            with theirs, link.command.prints.opened(link.name) as output:
                link.printed, link.process = output, link.command.start(theirs.fileno(), output.descriptor)
        except BaseException:
            ours.close()
            raise
        loop = asyncio.get_running_loop()
        link.deadline = loop.call_later(start_timeout_s, link.end, f"it did not start within {start_timeout_s:g} s")
        await loop.create_unix_connection(lambda: link, sock=ours)
        return link

    def __post_init__(self) -> None:
        self.process: subprocess.Popen[bytes]
        self.transport: asyncio.Transport
        self.deadline: asyncio.TimerHandle
        self.printed: Printed
        self.reader = FrameReader(frames.FROM_WORKER)
        self.worker: BatchWorker = BatchWorker(self.send, self.end)
        self.loop = asyncio.get_running_loop()

    @property
    def pid(self) -> int:
        """The process's pid; 0 while it starts."""
        return self.process.pid if self.status != "STARTING" else 0

    @property
    def reason(self) -> str:
        """Why it did not start: what it said, or the last line that it printed."""
        return (self.printed.last_line() if self.why.startswith("it ended") else "") or self.why

    def send(self, batch: Sequence[WaitingRequest]) -> None:
        """Give it a batch."""
        parts: list[bytes] = []
        last = len(batch) - 1
        requests = [one.request for one in batch]
        self.batch, watched = None, 0
        self.may_report = any([one.seen is not None for one in requests])
        if self.may_report:
            self.batch = sent_together(self.name, requests)
            watched = frames.WATCHED if self.batch is not None and self.batch.wanted else frames.IF_FAILED
        for i, one in enumerate(batch):
            frame = Frame(frames.REQUEST, one.id, one.about, one.request.body, watched | (frames.MORE if i < last else 0))
            parts += (frame.head, frame.text, frame.body)
        self.transport.writelines(parts)

    def send_streams(self, joining: Sequence[WaitingRequest]) -> None:
        """Give it requests that join those that it has, each with what another worker has sent of its answer."""
        parts: list[bytes] = []
        for one in joining:
            wanted = one.request.pieces is not None
            sent_together(self.name, [one.request], len(self.worker.in_hand))
            sent = [Frame(frames.SENT, one.id, body=piece) for piece in one.sent]
            asked = Frame(frames.REQUEST, one.id, one.about, one.request.body, frames.STREAM if wanted else 0)
            parts += [part for frame in (*sent, asked) for part in (frame.head, frame.text, frame.body)]
        self.transport.writelines(parts)

    def cancel(self, request_id: int) -> None:
        """Nobody wants that answer any more."""
        if not self.transport.is_closing():
            self.transport.write(Frame(frames.CANCEL, request_id).head)

    def retire(self) -> None:
        """Let it finish its batch, and end."""
        self.status = "UNLOADING"
        self.worker.retiring = True
        if not self.worker.busy:
            self.transport.close()  # the worker ends at the end of its socket

    def end(self, why: str) -> None:
        """End it at once."""
        if not self.why:
            self.why = why
            log.error("worker %d of %s is ended: %s", self.process.pid, self.command.model_dir.name, why)
        self.process.kill()
        self.transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ours: ask the worker to start."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        about = {"version": frames.VERSION, "batch_size": self.command.batch_size, "streams": True}
        start = frames.of_json(frames.START, about)
        self.transport.writelines([start.head, start.text])

    def data_received(self, data: bytes) -> None:
        """Frames, or pieces of them."""
        self.worker.heard_at = self.loop.time()
        try:
            for frame in self.reader.frames(data):
                self._heard(frame)
        except (BrokenFrame, LyingWorker) as error:
            self.end(f"it broke the protocol: {error}")

    def _heard(self, frame: Frame) -> None:
        if isinstance(self.worker, StreamWorker) and frame.kind in (frames.ANSWER, frames.PIECE, frames.DONE):
            self._heard_stream(self.worker, frame)
        elif frame.kind == frames.ANSWER:
            status, headers = frames.answer_about(frame.text)
            self.queue.answered(self.worker, frame.id, BackendAnswer(status, headers, frame.body))
        elif frame.kind == frames.DONE:
            self.queue.done(self.worker, dead=bool(frame.flags & frames.DEAD))
            self.batch, self.may_report = None, False
            if self.worker.retiring:
                self.transport.close()
        elif frame.kind == frames.REPORT:
            self._reported(frame)
        elif frame.kind == frames.NUMBERS:
            self._measure(frame.json().get("metrics"))
        elif frame.kind == frames.STARTED and self.status == "STARTING":
            self._start(frame.json())
        elif frame.kind == frames.FAILED and self.status == "STARTING":
            self.why = frame.text.decode("utf-8", "replace")
        elif frame.kind == frames.BEAT:
            if frame.flags & frames.TURN and isinstance(self.worker, StreamWorker):
                self.worker.busy_since = self.loop.time()
        else:
            raise BrokenFrame("a start, or a piece, that nobody has asked for")

    def _reported(self, frame: Frame) -> None:
        if not self.may_report:
            raise BrokenFrame("a report that nobody has asked for")
        self.may_report = False
        try:
            report = BatchReport.read(frame.text)
        except ValueError as error:
            raise BrokenFrame(str(error)) from None
        if self.batch is None or report.cuts or any(call.error for call in report.calls):
            self.batch = self._seen_now()
        if self.batch is not None:
            self.batch.report = report

    def _seen_now(self) -> BatchWay | None:
        """Its batch, of which those who observe a request know from now on."""
        since = time.time() - (self.loop.time() - self.worker.busy_since)
        return seen_now(self.batch, self.name, [one.request for one in self.worker.batch], since)

    def _heard_stream(self, worker: StreamWorker, frame: Frame) -> None:
        if frame.kind == frames.DONE:
            if not frame.flags & frames.DEAD:
                raise BrokenFrame("a batch that is over, of a worker that has none")
            self.queue.done(worker, dead=True)
            self.transport.close()  # whatever it has in hand goes on in another one; its process may not end
        elif frame.kind == frames.ANSWER:
            status, headers = frames.answer_about(frame.text)
            self.queue.answered(worker, frame.id, BackendAnswer(status, headers, frame.body))
        elif frame.flags & frames.MORE:
            begun = frames.answer_about(frame.text)[1] if frame.text else None
            self.queue.piece(worker, frame.id, begun, frame.body)
        else:
            self.queue.over(worker, frame.id)
        if worker.retiring and not worker.busy:
            self.transport.close()

    def _start(self, said: Mapping[str, Any]) -> None:
        if said.get("version") != frames.VERSION:
            raise BrokenFrame(f"it speaks version {said.get('version')} of the frames, its host {frames.VERSION}")
        self.deadline.cancel()
        if said.get("cancels") is True:
            self.worker.cancel = self.cancel
        if (streams := said.get("streams")) is not None:
            slots = streams.get("slots") if isinstance(streams, dict) else None
            if type(slots) is not int or slots < 1:
                raise BrokenFrame(f"it says of its streams {streams!r:.80}")
            whole = streams.get("whole") is True
            self.worker = StreamWorker(self.send_streams, self.end, slots=slots, cancel=self.cancel, whole=whole)
        self.status, self.got = "READY", said
        self.queue.joined(self.worker)
        self.started(self)

    def _measure(self, metrics: object) -> None:
        for number in metrics if isinstance(metrics, list) else ():
            with contextlib.suppress(Exception):  # what a worker counts costs no answer
                self.measured(*number)

    def connection_lost(self, error: Exception | None) -> None:
        """The worker has closed its end, or we have."""
        self.deadline.cancel()
        if (batch := self._seen_now()) is not None:
            batch.fail("the worker ended")
        if self.worker in self.queue.workers:
            self.queue.ended(self.worker)
        self.status = "UNLOADING"
        self._closed()

    def _closed(self) -> None:
        """Its connection has ended; its process may not have."""
        reaping = self.loop.create_task(self._reap())
        reaping.add_done_callback(lambda _: self.ended(self))

    async def _reap(self) -> None:
        """Wait until the process is gone, in a thread of its own; who retires may take a while, nobody else."""
        thread = ThreadPoolExecutor(1)
        patience_s = REAP_S if self.worker.retiring or self.why else 0.5
        try:
            code = await self.loop.run_in_executor(thread, self.process.wait, patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = await self.loop.run_in_executor(thread, self.process.wait)
        finally:
            thread.shutdown(wait=False)
        if not self.why and not self.worker.retiring:
            self.why = f"it ended with {code}"
            log.error("worker %d of %s ended with %d", self.process.pid, self.command.model_dir.name, code)
