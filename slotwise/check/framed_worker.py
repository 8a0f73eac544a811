"""Run an archive's worker as our own host does (`slotwise serve --server slotwise`), and talk to it in its frames."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from slotwise.archive.guarding.foreign import GUARD
from slotwise.bench.bodies import RequestBody
from slotwise.check.worker_process import CheckedWorker, WorkerFault
from slotwise.check.worker_protocol import SlotAnswer
from slotwise.worker.hosts import frames
from slotwise.worker.hosts.frames import BrokenFrame, Frame, FrameReader

READ_BYTES = 1 << 18


class FramedWorker(CheckedWorker):
    """The archive's own `hosts/framed.py` with one model."""

    def __init__(self, model_dir: Path, folder: Path, timeout_s: float, environ: dict[str, str]) -> None:
        super().__init__(model_dir, folder, timeout_s)
        package = GUARD if (model_dir / GUARD).is_dir() else "slotwise.worker"
        self.connection, theirs = socket.socketpair()
        self.reader, self.last_id = FrameReader(frames.FROM_WORKER), 0
        with theirs:
            command = [sys.executable, "-P", "-m", f"{package}.hosts.framed", str(theirs.fileno())]
            self.start(command, environ, theirs.fileno())

    def load(self, name: str, handler: str, batch_size: int) -> None:
        """Load the model. Raises WorkerFault, which says why it could not."""
        self._send([frames.of_json(frames.START, {"version": frames.VERSION, "batch_size": batch_size})], 0)
        for frame in self._frames(0):
            if frame.kind == frames.FAILED:
                raise WorkerFault(f"the model was not loaded: {frame.text.decode('utf-8', 'replace')}")
            if frame.kind == frames.STARTED:
                return

    def predict(self, bodies: Sequence[RequestBody]) -> list[SlotAnswer]:
        """Send one batch. Raises WorkerFault where there are no answers slot by slot."""
        log_size, first, n = len(self.log()), self.last_id + 1, len(bodies)
        self.last_id += n
        self._send([_request(body, first + i, last=i == n - 1) for i, body in enumerate(bodies)], log_size)
        answers: dict[int, SlotAnswer] = {}
        for frame in self._frames(log_size):
            if frame.kind == frames.DONE:
                break
            if frame.kind == frames.ANSWER:
                answers[frame.id - first] = _answer(frame)
        if sorted(answers) != list(range(n)):
            raise WorkerFault(f"{len(answers)} answers to {n} requests: {sorted(answers)}")
        return [answers[i] for i in range(n)]

    def _send(self, sent: Sequence[Frame], log_size: int) -> None:
        self.connection.settimeout(self.timeout_s)
        try:
            self.connection.sendall(b"".join(part for frame in sent for part in (frame.head, frame.text, frame.body)))
        except TimeoutError as error:
            raise WorkerFault(f"it takes no batch for {self.timeout_s:.0f} s") from error
        except OSError as error:
            raise WorkerFault(f"the worker ended{self.reason(log_size)}") from error

    def _frames(self, log_size: int) -> Iterator[Frame]:
        """What it sends, until nobody asks for more. Raises WorkerFault where that ends, or takes too long."""
        deadline = time.monotonic() + self.timeout_s  # of all of it: a worker that hangs may still beat
        while True:
            self.connection.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self.connection.recv(READ_BYTES)
                came = list(self.reader.frames(data))
            except TimeoutError as error:
                raise WorkerFault(f"no answer in {self.timeout_s:.0f} s") from error
            except BrokenFrame as error:
                raise WorkerFault(f"the worker broke the protocol: {error}") from error
            except OSError as error:
                raise WorkerFault(f"the worker ended{self.reason(log_size)}") from error
            if not data:
                raise WorkerFault(f"the worker ended{self.reason(log_size)}")
            yield from came


def _request(body: RequestBody, number: int, *, last: bool) -> Frame:
    about = frames.request_text({"content-type": body.content_type, "x-request-id": f"check-{number}"}, "")
    data = b"" if body.field is None else body.data
    return Frame(frames.REQUEST, number, about, data, 0 if last else frames.MORE)


def _answer(frame: Frame) -> SlotAnswer:
    status, pairs = frames.answer_about(frame.text)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    return SlotAnswer(status, frame.body, headers.pop("content-type", ""), headers)
