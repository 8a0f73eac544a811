"""Run the archive's worker in a child process, and replace the child when it ends, crashes or takes too long.

For a host whose own process must not end: Triton does not start the process of a python model again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slotwise.worker.hosts.local import read_message, write_message

logger = logging.getLogger(__name__)

LOOK_S = 0.2  # how often the child is looked after
LONGEST_PAUSE_S = 30.0  # between two attempts to start a child
CLOSE_S = 5.0
PIPE_BYTES = 1 << 20  # a batch of photos passes in one piece; Linux lets anybody have that much


class WorkerDied(Exception):
    """The child ended before it had answered; the text is for the client. status: of HTTP."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class WorkerProcess:
    """One child: the worker of the extracted archive (hosts/local.py), started with batches of `batch_size`.

    Raises ValueError with what the handler raised, or with how the child ended, where it does not start.
    """

    def __init__(self, model_dir: Path, batch_size: int, timeout_s: float, environ: Mapping[str, str]) -> None:
        python = sys.executable if "python" in Path(sys.executable or "").name else shutil.which("python3")
        self.timeout_s, self.until_s = timeout_s, 0.0
        self.child = subprocess.Popen(
            [str(python), "-P", "-m", f"{__package__}.local"],
            cwd=model_dir,
            env={**environ, "PYTHONPATH": str(model_dir)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with contextlib.suppress(OSError, AttributeError):  # as far as the system and its limits have it
            fcntl.fcntl(self.child.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)  # type: ignore[arg-type]
        try:
            reply, _ = self.exchange({"start": {"batch_size": batch_size}}, [], timeout_s=0.0)
        except (OSError, ValueError) as error:
            code = self.child.poll()
            self.end()
            raise ValueError(f"the worker ended with {code} while it started") from error
        except BaseException:
            self.end()
            raise
        if "error" in reply:
            self.end()
            raise ValueError(str(reply["error"]))

    @property
    def pid(self) -> int:
        """The child's pid."""
        return self.child.pid

    @property
    def overdue(self) -> bool:
        """Whether it has not answered within the timeout."""
        return 0.0 < self.until_s < time.monotonic()

    def exchange(
        self, message: Mapping[str, Any], bodies: Sequence[bytes], timeout_s: float | None = None
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send one message and wait for its answer. timeout_s: after which `overdue` holds; 0: never, None: the worker's own.

        Raises OSError or ValueError where the child ended.
        """
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        patience_s = self.timeout_s if timeout_s is None else timeout_s
        self.until_s = time.monotonic() + patience_s if patience_s else 0.0
        try:
            write_message(self.child.stdin, dict(message), bodies)  # type: ignore[arg-type]
            read = read_message(self.child.stdout, "answers")  # type: ignore[arg-type]
        finally:
            self.until_s = 0.0
        if read is None:
            raise ValueError("the worker has ended")
        return read

    def end(self, patience_s: float = 0.0) -> None:
        """End the child: let it finish for so long, then kill it."""
        with contextlib.suppress(OSError, ValueError):
            if self.child.stdin is not None:
                self.child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(patience_s)
        self.child.kill()
        self.child.wait()
        if self.child.stdout is not None:
            self.child.stdout.close()


class ReplacedWorker:
    """A child that answers, and the next one where that one is gone. For one caller at a time.

    changed(pid): told of every child that is ready, and 0 when it is gone.
    """

    def __init__(
        self,
        model_dir: Path,
        batch_size: int,
        timeout_s: float,
        environ: Mapping[str, str] = os.environ,
        changed: Callable[[int], None] = lambda pid: None,
    ) -> None:
        self._start: Callable[[], WorkerProcess] = lambda: WorkerProcess(model_dir, batch_size, timeout_s, environ)
        self._told, self._state = changed, threading.Condition()
        self._gone: list[WorkerProcess] = []
        self._closing, self._problem = False, ""
        self._current: WorkerProcess | None = self._start()
        changed(self._current.pid)
        self._thread = threading.Thread(target=self._look_after, name="slotwise-worker", daemon=True)
        self._thread.start()

    def answer(self, message: Mapping[str, Any], bodies: Sequence[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """The child's reply. Waits while the next child starts. Raises WorkerDied where there is no reply."""
        with self._state:
            if self._current is not None and self._current.child.poll() is not None:
                self._lose(self._current)
            self._state.wait_for(lambda: self._current is not None or self._problem or self._closing)
            worker = self._current
            if worker is None:
                raise WorkerDied(f"the worker does not start: {self._problem or 'it is being stopped'}", 503)
        try:
            reply = worker.exchange(message, bodies)
        except (OSError, ValueError) as error:
            with self._state:
                self._lose(worker)
            raise WorkerDied("Worker died.") from error
        if reply[0].get("dead"):
            with self._state:
                self._lose(worker)
        return reply

    def close(self) -> None:
        """End the child, and start no other."""
        with self._state:
            self._closing = True
            self._state.notify_all()
        self._thread.join()
        for worker in (self._current, *self._gone):
            if worker is not None:
                worker.end(CLOSE_S)
        self._told(0)

    def _lose(self, worker: WorkerProcess) -> None:
        """With the lock: this child answers no more."""
        if self._current is worker:
            self._current, self._problem = None, ""
            self._gone.append(worker)
            self._state.notify_all()

    def _look_after(self) -> None:
        """The thread: kill a child that takes too long, and start the next one where there is none."""
        pause_s = 0.0
        while True:
            with self._state:
                self._state.wait_for(lambda: self._closing or self._current is None, LOOK_S)
                if self._closing:
                    return
                worker = self._current
                if worker is not None and worker.child.poll() is not None:
                    self._lose(worker)
            if worker is not None:
                if worker.overdue:
                    logger.error("the worker %d did not answer within %g s: it is ended", worker.pid, worker.timeout_s)
                    worker.child.kill()
                continue
            pause_s = self._replace(pause_s)

    def _replace(self, pause_s: float) -> float:
        """Start the next child, after a pause. Returns how long to wait before another attempt; 0 where it has started."""
        self._told(0)
        while self._gone:
            self._gone.pop().end(CLOSE_S)
        with self._state:
            if self._state.wait_for(lambda: self._closing, pause_s):
                return 0.0
        try:
            started = self._start()
        except Exception as error:
            logger.exception("the worker does not start")
            with self._state:
                self._problem = str(error)
                self._state.notify_all()
            return min(LONGEST_PAUSE_S, 2 * pause_s + 0.5)
        with self._state:
            self._current, self._problem = started, ""
            self._state.notify_all()
        self._told(started.pid)
        return 0.0
