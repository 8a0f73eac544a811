"""A worker's process while it is checked: what it logs, why it ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from slotwise.bench.bodies import RequestBody
from slotwise.check.worker_protocol import SlotAnswer

EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b.*", re.MULTILINE)


class WorkerFault(Exception):
    """The worker gave no usable answer to a batch; the message says what its clients would have got, and why.

    ended: the worker takes no further batch.
    """

    def __init__(self, message: str, *, ended: bool = True) -> None:
        super().__init__(message)
        self.ended = ended


class CheckedWorker(ABC):
    """A worker with one model, and the socket to it. `folder`: an empty one for its log and what else it needs."""

    process: subprocess.Popen[bytes]
    connection: socket.socket

    def __init__(self, model_dir: Path, folder: Path, timeout_s: float) -> None:
        self.model_dir, self.folder, self.timeout_s = model_dir, folder, timeout_s
        folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def load(self, name: str, handler: str, batch_size: int) -> None:
        """Load the model. Raises WorkerFault, which says why it could not."""

    @abstractmethod
    def predict(self, bodies: Sequence[RequestBody]) -> list[SlotAnswer]:
        """Send one batch. Raises WorkerFault where there are no answers slot by slot."""

    def start(self, command: Sequence[str], environ: dict[str, str], *descriptors: int) -> None:
        """Start the process in the model's folder; it has these descriptors, too."""
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.model_dir,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=descriptors,
            )

    def logged_exception(self, since: int = 0) -> str:
        """The last exception in the worker's log, "" where there is none."""
        exceptions = [line for line in EXCEPTION.findall(self.log()[since:]) if "Unknown exception" not in line]
        return exceptions[-1].strip() if exceptions else ""

    def log(self) -> str:
        """Everything the worker printed."""
        return (self.folder / "log").read_text("utf-8", "replace")

    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def close(self) -> None:
        """End the worker and the children that MMS forks."""
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def reason(self, since: int) -> str:
        """The exception behind a failure; the log may lag behind the socket for a moment."""
        for _ in range(6):
            if exception := self.logged_exception(since):
                return f" ({exception[:300]})"
            time.sleep(0.05)
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
