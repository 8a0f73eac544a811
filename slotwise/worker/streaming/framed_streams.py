"""Serve streams over a host's frames: between two turns requests join and leave, and what was computed is sent.

Three threads: one reads frames, one decodes what came together, and the worker's own runs the model and sends. So neither a
slow body nor a slow host is waited for between two turns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

from slotwise.worker.batch import Batch
from slotwise.worker.budget import Budget
from slotwise.worker.decoding.decoders import MAX_STUCK
from slotwise.worker.hosts import frames, reading
from slotwise.worker.hosts.frames import BrokenFrame, Frame
from slotwise.worker.pipeline import Pipeline
from slotwise.worker.request import Request
from slotwise.worker.slot_errors import ModelFault
from slotwise.worker.streaming.stream_desk import OpenRequest, StreamDesk, alone

logger = logging.getLogger(__name__)

IDLE_S = 0.2  # how often a worker without streams looks at its numbers
TURN_S = 1.0  # how often it says that there are turns: a stream that is computed again says nothing for long


class Link(Protocol):
    """The worker's end of the socket."""

    def send(self, sent: Sequence[Frame]) -> None:
        """Send these frames. Raises OSError where the host has gone."""


class StreamedWorker(Protocol):
    """The worker whose streams these are."""

    pipeline: Pipeline
    desk: StreamDesk

    def measured_streams(self, ended: Sequence[Batch]) -> list[list[object]]:
        """The numbers since the last call, those of these batches among them."""


class FramedStreams:
    """Serves one worker. as_request(frame): what a REQUEST is, its body not looked at."""

    def __init__(self, worker: StreamedWorker, as_request: Callable[[Frame], Request]) -> None:
        self.worker, self.desk, self.pipeline, self.as_request = worker, worker.desk, worker.pipeline, as_request
        self.inbox: SimpleQueue[Frame | OpenRequest | BaseException | None] = SimpleQueue()
        self.to_decode: SimpleQueue[Frame] = SimpleQueue()
        self.decoding: set[int] = set()
        self.sent: dict[int, list[bytes]] = {}
        self.told_at = 0.0
        self.at_work = False  # on a request that has been decoded
        self.may_decode = threading.Semaphore(1)  # where requests run one after the other: the one before is answered

    def serve(self, link: Link, received: Iterator[Frame]) -> None:
        """Serve until the host closes its end, or the engine is dead. Raises BrokenFrame, OSError where the host has gone."""
        for run in (lambda: self._receive(received), self._decode):
            threading.Thread(target=run, name="slotwise-streams", daemon=True).start()
        while True:
            for came in self._come():
                if came is None:
                    return
                link.send(self._taken(came))
            if self.desk.busy:
                link.send(self.desk.turn())
                if time.monotonic() - self.told_at > TURN_S:
                    self.told_at = time.monotonic()
                    link.send([Frame(frames.BEAT, flags=frames.TURN)])
            if self.at_work and not self.desk.open and not self.desk.busy:
                self.at_work = False
                self.may_decode.release()
            if self.desk.runner.dead or self.pipeline.dead:
                link.send([Frame(frames.DONE, flags=frames.DEAD)])
                return
            ended, self.desk.ended = self.desk.ended, []
            if numbers := self.worker.measured_streams(ended):
                link.send([frames.of_json(frames.NUMBERS, {"metrics": numbers})])

    def _come(self) -> Iterator[Frame | OpenRequest | BaseException | None]:
        """What has come since the last turn; where no stream runs, what comes first."""
        try:
            yield self.inbox.get(block=not self.desk.busy, timeout=IDLE_S)
            while True:
                yield self.inbox.get_nowait()
        except Empty:
            return

    def _taken(self, came: Frame | OpenRequest | BaseException) -> list[Frame]:
        if isinstance(came, BaseException):
            raise came
        if isinstance(came, OpenRequest):
            self.at_work = self.pipeline.apart
            if came.id not in self.decoding:  # it was cancelled meanwhile
                return []
            self.decoding.remove(came.id)
            came.sent = tuple(self.sent.pop(came.id, ()))
            taken = self.desk.take(came)
            self.pipeline.look_who_reads(came.batch)
            return taken
        if came.kind == frames.SENT:
            self.sent.setdefault(came.id, []).append(came.body)
        elif came.kind == frames.REQUEST:
            if came.id in self.decoding or came.id in self.desk.open:
                raise BrokenFrame(f"request {came.id} for the second time")
            self.decoding.add(came.id)
            self.to_decode.put(came)
        elif came.kind == frames.CANCEL:
            if came.id not in self.decoding:
                return self.desk.cancel(came.id)
            self.decoding.remove(came.id)
            self.sent.pop(came.id, None)
            return [Frame(frames.PIECE, came.id)]
        else:
            raise BrokenFrame("a second start")
        return []

    def _receive(self, received: Iterator[Frame]) -> None:
        """In a thread: hand on what the host sends, and then its end."""
        end: BaseException | None = None
        try:
            for frame in received:
                self.inbox.put(frame)
        except OSError:
            logger.info("the host has gone")
        except BaseException as error:  # without this thread the worker would be deaf, and alive to its host
            end = error
        self.inbox.put(end)

    def _decode(self) -> None:
        """In a thread: decode what came together, side by side."""
        most = 1 if self.pipeline.apart else max(1, self.pipeline.settings.batch_size)
        while True:
            if self.pipeline.apart:
                self.may_decode.acquire()
            asked = [self.to_decode.get()]
            while not self.to_decode.empty() and len(asked) < most:
                asked.append(self.to_decode.get())
            try:
                batch = self._decoded(asked)
            except (BrokenFrame, KeyboardInterrupt) as error:
                self.inbox.put(error)
                return
            except Exception:
                logger.exception("the worker itself failed on %d requests", len(asked))
                batch = Batch([self.as_request(frame) for frame in asked])
                for i in range(len(asked)):
                    batch.reject(i, ModelFault("the handler failed"))
            for i, frame in enumerate(asked):
                wants = bool(frame.flags & frames.STREAM)
                self.inbox.put(OpenRequest(frame.id, alone(batch, i), wants))

    def _decoded(self, asked: Sequence[Frame]) -> Batch:
        settings, decoders, began = self.pipeline.settings, self.pipeline.decoders, time.perf_counter()
        batch = Batch([reading.parsed(self.as_request(frame)) for frame in asked])
        self.pipeline.decode(batch, Budget(batch.n, settings.response_timeout_s, settings.decode_budget_ms, decoders.threads))
        batch.decode_ms = (time.perf_counter() - began) * 1000
        if decoders.stuck() > MAX_STUCK:
            logger.error("too many decoders never end: this worker ends")
            self.pipeline.dead = True
        return batch
