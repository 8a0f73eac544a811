"""Run the archive's worker in a child process, and replace one that ends, crashes, takes too long or breaks its messages.

For a host whose own process must not end: Triton does not start the process of a python model again.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slotwise.worker.hosts.child import START_TIMEOUT_S, Worker, WorkerDied
from slotwise.worker.hosts.messages import Reply
from slotwise.worker.hosts.pipes import LOOK_S

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S = 30.0  # between two attempts to start a child
CLOSE_S = 5.0


class ReplacedWorker:
    """A child that answers, and the next one where that one is gone. For one caller at a time.

    timeout_s: how long a batch may take, and wait for the next child; 0: any time. start_timeout_s: how long a child may take
    to start. changed(pid): told of every child that is ready, and 0 when it is gone.

    Raises WorkerFailed or WorkerDied where the first child does not start.
    """

    def __init__(
        self,
        model_dir: Path,
        batch_size: int,
        timeout_s: float,
        environ: Mapping[str, str] = os.environ,
        changed: Callable[[int], None] = lambda pid: None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self.model_dir, self.batch_size, self.environ = model_dir, batch_size, environ
        self.timeout_s, self.start_timeout_s = timeout_s, start_timeout_s
        self._changed, self._state = changed, threading.Condition()
        self._gone: list[Worker] = []
        self._closing, self._problem = False, ""
        self._starting: Worker | None = None
        self._current: Worker | None = self._start()
        changed(self._current.pid)
        self._thread = threading.Thread(target=self._look_after, name="slotwise-worker", daemon=True)
        self._thread.start()

    def answer(self, message: Mapping[str, Any], bodies: Sequence[bytes]) -> Reply:
        """The child's answers, one a request. Waits while the next child starts.

        Raises WorkerDied where there is no answer, and WorkerFailed with what the child says instead of one.
        """
        with self._state:
            if self._current is not None and not self._current.quiet:  # nothing is lost: it has not been asked yet
                self._current.kill()
                self._lose(self._current)
            self._state.wait_for(lambda: self._current or self._problem or self._closing, self.timeout_s or None)
            worker = self._current
            if worker is None:
                why = "" if self._problem else ": it is being stopped" if self._closing else ": it is still starting"
                raise WorkerDied(f"the worker does not start{why}", 503)
        try:
            reply = worker.answer(message, bodies, len(bodies), self.timeout_s)
        except WorkerDied as died:
            logger.error("the worker %d is ended: %s", worker.pid, died.__cause__ or died)
            with self._state:
                self._lose(worker)
            raise WorkerDied("Worker died.") from died
        if reply.dead:
            with self._state:
                self._lose(worker)
        return reply

    def close(self) -> None:
        """End the child, and start no other."""
        with self._state:
            self._closing = True
            if self._starting is not None:
                self._starting.kill()
            self._state.notify_all()
        self._thread.join()
        for worker in (self._current, *self._gone):
            if worker is not None:
                worker.close(CLOSE_S)
        self._changed(0)

    def _start(self) -> Worker:
        """A child that is ready."""
        python = sys.executable if "python" in Path(sys.executable or "").name else shutil.which("python3")
        environ = {**self.environ, "PYTHONPATH": str(self.model_dir)}
        worker = Worker(str(python), f"{__package__}.local", self.model_dir, environ)
        with self._state:
            self._starting = worker
            if self._closing:
                worker.kill()
        try:
            worker.start(self.batch_size, self.start_timeout_s)
        except BaseException:
            worker.close()
            raise
        finally:
            with self._state:
                self._starting = None
        return worker

    def _lose(self, worker: Worker) -> None:
        """With the lock: this child answers no more."""
        if self._current is worker:
            self._current, self._problem = None, ""
            self._gone.append(worker)
            self._state.notify_all()

    def _look_after(self) -> None:
        """The thread: start the next child where there is none."""
        pause_s = 0.0
        while True:
            with self._state:
                self._state.wait_for(lambda: self._closing or self._current is None, LOOK_S)
                if self._closing:
                    return
                worker = self._current
                if worker is not None and not worker.alive:
                    self._lose(worker)
            if worker is None:
                pause_s = self._replace(pause_s)

    def _replace(self, pause_s: float) -> float:
        """Start the next child, after a pause. Returns how long to wait before another attempt; 0 where it has started."""
        self._changed(0)
        while self._gone:
            self._gone.pop().close(CLOSE_S)
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
        self._changed(started.pid)
        return 0.0
