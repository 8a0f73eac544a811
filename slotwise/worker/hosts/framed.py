"""Answer batches in a process of its own, for the host that Slotwise itself is.

    python -P -m slotwise.worker.hosts.framed SOCKET      in the extracted archive, its folder first on PYTHONPATH

The process reads frames (frames.py) from the Unix socket whose descriptor is SOCKET, and answers every request of a batch once.
The socket is its own: a handler's standard input is empty, and what it or its programs print goes to standard error. It ends
with the host: at the end of the socket, or when its next beat reaches nobody.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import parse_qsl

from slotwise.worker.hosts import frames
from slotwise.worker.hosts.frames import BrokenFrame, Frame, FrameReader
from slotwise.worker.hosts.local import Answerer, answerer, keep_from_others
from slotwise.worker.reports.batch_report import watched
from slotwise.worker.request import Headers, Request
from slotwise.worker.slot_errors import text

logger = logging.getLogger(__name__)

BEAT_S = 1.0
LISTEN_S = 0.005  # while a batch is answered, what the host says is looked at so often at most
READ_BYTES = 1 << 18
PARTS = 512  # of a message at once; the system takes 1,024


class HostLink:
    """The worker's end of the socket. Frames may be sent from any thread.

    slots: of the batch that is being answered, by id. cancelled: slots of it whose answers nobody wants any more.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sending, self.listening = threading.Lock(), threading.Lock()
        self.reader = FrameReader(frames.FROM_FRONT)
        self.received: deque[Frame] = deque()
        self.broken: BrokenFrame | None = None
        self.slots: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.listen_at = 0.0

    def send(self, sent: Sequence[Frame]) -> None:
        """Send these frames, one directly after the other. Raises OSError where the host has gone."""
        parts = [part for frame in sent for part in (frame.head + frame.text, frame.body) if part]
        with self.sending:
            for at in range(0, len(parts), PARTS):
                self._send_all(parts[at : at + PARTS])

    def _send_all(self, parts: list[bytes]) -> None:
        done = self.sock.sendmsg(parts)
        for part in parts:
            if done < len(part):
                self.sock.sendall(memoryview(part)[done:])
                done = 0
            else:
                done -= len(part)

    def frames(self) -> Iterator[Frame]:
        """What the host sends, until it closes its end. Raises BrokenFrame where that is no frames."""
        while True:
            while self.received:
                yield self.received.popleft()
            if self.broken is not None:
                raise self.broken
            if not (data := self.sock.recv(READ_BYTES)):
                break
            self.received.extend(self.reader.frames(data))
        if not self.reader.between_frames:
            raise BrokenFrame("half a frame")

    def begin(self, batch: Sequence[Frame]) -> None:
        """These are answered now; none: nothing is, and only `frames` reads."""
        with self.listening:
            self.slots = {frame.id: slot for slot, frame in enumerate(batch)}
            self.cancelled = set()
            self.listen_at = time.monotonic() + LISTEN_S

    def gone(self) -> set[int]:
        """Slots of the batch whose answers nobody wants any more, by what has come so far. For any thread."""
        if self.slots and time.monotonic() >= self.listen_at and self.listening.acquire(blocking=False):
            try:
                self._listen()
            finally:
                self.listening.release()
        return self.cancelled

    def _listen(self) -> None:
        """Take what has come, without waiting for more."""
        try:
            while self.slots and self.broken is None and (data := self.sock.recv(READ_BYTES, socket.MSG_DONTWAIT)):
                self.received.extend(self.reader.frames(data))
        except BlockingIOError:
            pass
        except BrokenFrame as error:  # once the batch is answered
            self.broken = error
        given_up = {self.slots[frame.id] for frame in self.received if frame.kind == frames.CANCEL and frame.id in self.slots}
        self.cancelled = self.cancelled | given_up
        self.listen_at = time.monotonic() + LISTEN_S


class FramedHost:
    """Answers batches with the handler that the first frame started."""

    def __init__(self, link: HostLink) -> None:
        self.link = link
        self.local: Answerer | None = None
        self.front_streams = False

    def serve(self) -> None:
        """Answer until the host closes its end, or the engine is dead."""
        batch: list[Frame] = []
        received = self.link.frames()
        for frame in received:
            if frame.kind == frames.START:
                self._start(frame)
                streaming = getattr(self.local, "streaming", None)  # a replica of Ray answers whole
                if streaming and self.front_streams:
                    streaming(as_request).serve(self.link, received)
                    return
                if (pipeline := getattr(self.local, "pipeline", None)) is not None:  # a guard runs all that it was given
                    pipeline.gone = self.link.gone
                continue
            if frame.kind == frames.CANCEL:  # what it was about has been answered
                continue
            if frame.kind != frames.REQUEST:
                raise BrokenFrame("a frame for a worker that streams")
            batch.append(frame)
            if not frame.flags & frames.MORE:
                self._answer(batch)
                batch = []
                if not self._go_on(self._local):
                    return

    def _go_on(self, local: Answerer) -> bool:
        """What is done between two batches, once the answers are on their way; whether there is another one."""
        if not local.dead:
            try:
                local.between()
            except Exception:
                logger.exception("what is done between two batches failed")
        if metrics := local.take_metrics():
            self.link.send([frames.of_json(frames.NUMBERS, {"metrics": metrics})])
        return not local.dead

    @property
    def _local(self) -> Answerer:
        if self.local is None:
            raise BrokenFrame("a request before the start")
        return self.local

    def _start(self, frame: Frame) -> None:
        wanted = frame.json()
        self.front_streams = wanted.get("streams") is True
        threading.Thread(target=self._beat, name="slotwise-beat", daemon=True).start()
        try:
            if wanted["version"] != frames.VERSION:
                raise ValueError(f"this worker speaks version {frames.VERSION} of the frames, its host {wanted['version']}")
            self.local = answerer(Path.cwd(), int(wanted["batch_size"]))
        except Exception as error:
            self.link.send([Frame(frames.FAILED, text=f"{type(error).__name__}: {text(error)}".encode("utf-8", "replace"))])
            raise
        self.link.send([frames.of_json(frames.STARTED, {"version": frames.VERSION, "cancels": True, **self.local.started})])

    def _answer(self, batch: Sequence[Frame]) -> None:
        """Answer one batch, and say that it is over."""
        local = self._local
        requests = [as_request(frame) for frame in batch]
        self.link.begin(batch)
        told: list[Frame] = []
        if batch[0].flags & (frames.WATCHED | frames.IF_FAILED):
            answered, told = watched(local, requests, always=bool(batch[0].flags & frames.WATCHED))
        else:
            answered = local.run(requests)
        self.link.begin(())
        sent = [frames.of_answer(frame.id, answer) for frame, answer in zip(batch, answered.answers, strict=True)]
        self.link.send([*told, *sent, Frame(frames.DONE, flags=frames.DEAD if local.dead else 0)])

    def _beat(self) -> NoReturn:
        while True:
            time.sleep(BEAT_S)
            try:
                self.link.send([Frame(frames.BEAT)])
            except OSError:  # the host has gone, and nobody wants what is being computed
                os._exit(1)


def as_request(frame: Frame) -> Request:
    """The request that a REQUEST is; nobody has looked at its body. Raises BrokenFrame."""
    raw, query = frames.request_about(frame.text)
    headers = Headers(raw)
    parameters = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
    return Request(frame.body, headers, headers.get("x-request-id") or f"request-{frame.id}", query=parameters)


def main() -> None:
    """Answer what comes on the socket that the host named."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s - %(message)s")
    descriptor = int(sys.argv[1])
    keep_from_others(descriptor)
    try:
        FramedHost(HostLink(socket.socket(fileno=descriptor))).serve()
    except BrokenFrame as error:  # the host is confused: nothing that comes after it can be trusted
        sys.exit(f"the worker ends: {error}")
    except (BrokenPipeError, ConnectionResetError):
        sys.exit("the worker ends: its host has gone")
    finally:
        sys.stderr.flush()


if __name__ == "__main__":
    main()
