"""TorchServe's log files: lines are gathered, written a few times a second, and a file that is full is put aside."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

WRITE_EVERY_S = 0.2
FULL_BYTES = 100 << 20
KEPT = 5
MOST_LINES = 100_000  # that wait where nobody takes them: the oldest are dropped
LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}


class LineFile:
    """Lines for one file; where it cannot be written they are dropped, which is said once."""

    def __init__(self, path: Path, full_bytes: int = FULL_BYTES) -> None:
        self.path, self.full_bytes = path, full_bytes
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._complained = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError as error:
            self._complain(error)

    def write(self, line: str) -> None:
        """One line, without its end."""
        self._lines.append(line)

    def flush(self) -> None:
        """Write what has come."""
        text = _taken(self._lines)
        if not text:
            return
        try:
            with self.path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(text)
                full = file.tell() > self.full_bytes
            if full:
                self._put_aside()
        except OSError as error:
            self._complain(error)

    def _put_aside(self) -> None:
        for i in range(KEPT - 1, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{i}")
            if older.exists():
                older.replace(self.path.with_name(f"{self.path.name}.{i + 1}"))
        self.path.replace(self.path.with_name(f"{self.path.name}.1"))

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            with suppress(OSError, ValueError):  # what it writes to may be full, too
                sys.stderr.write(f"{self.path} cannot be written: {error.strerror or error}\n")


def _taken(lines: deque[str]) -> str:
    """What has come until now, as text; other threads may add to it meanwhile."""
    taken = [lines.popleft() for _ in range(len(lines))]
    return "\n".join([*taken, ""]) if taken else ""


class Stamp:
    """The time as log4j's ISO8601 has it."""

    def __init__(self) -> None:
        self._second, self._text = -1, ""

    def now(self) -> str:
        """2026-01-31T12:00:00,123."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(second))
        return f"{self._text},{int((now - second) * 1000):03d}"


class LogFiles:
    """The five files, and standard output, which gets everything but the metrics. They are written by a thread."""

    def __init__(self, logs: Path, metrics: Path, out: TextIO | None = None) -> None:
        self.ts_log, self.access_log, self.model_log = (
            LineFile(logs / f"{name}.log") for name in ("ts_log", "access_log", "model_log")
        )
        self.ts_metrics, self.model_metrics = (LineFile(metrics / f"{name}.log") for name in ("ts_metrics", "model_metrics"))
        self.stamp, self.out = Stamp(), out or sys.stdout
        self._printed: deque[str] = deque(maxlen=MOST_LINES)
        self._one_by_one = threading.Lock()  # who flushes waits for what another thread has taken, and not written yet
        threading.Thread(target=self._write, name="slotwise-logs", daemon=True).start()
        atexit.register(self.flush)

    def access(self, line: str) -> None:
        """One answered request."""
        stamp = self.stamp.now()
        self.access_log.write(f"{stamp} - {line}")
        self._printed.append(f"{stamp} [INFO ] http ACCESS_LOG - {line}")

    def model(self, worker: str, lines: Iterable[str]) -> None:
        """What a worker printed."""
        for line in lines:
            text = f"{self.stamp.now()} [INFO ] {worker}-stdout MODEL_LOG - {line}"
            self.model_log.write(text)
            self._printed.append(text)

    def server(self, level: str, source: str, line: str) -> None:
        """What the server itself has to say."""
        text = f"{self.stamp.now()} [{level:5}] main {source} - {line}"
        self.ts_log.write(text)
        self._printed.append(text)

    def metric(self, file: LineFile, line: str) -> None:
        """One number."""
        file.write(f"{self.stamp.now()} - {line}")

    def print(self, line: str) -> None:
        """A plain line on standard output, now."""
        self._printed.append(line)
        self.flush()

    def flush(self) -> None:
        """Write everything that has come, in its order."""
        with self._one_by_one:
            self._flush()

    def _flush(self) -> None:
        printed = _taken(self._printed)
        if printed:
            try:
                self.out.write(printed)
                self.out.flush()
            except (OSError, ValueError):  # nobody reads it any more
                pass
        for file in self._files():
            file.flush()

    def _files(self) -> Iterable[LineFile]:
        return (self.ts_log, self.access_log, self.model_log, self.ts_metrics, self.model_metrics)

    def _write(self) -> None:
        while True:
            time.sleep(WRITE_EVERY_S)
            self.flush()


class ToLogFiles(logging.Handler):
    """Python's logging, to ts_log.log and standard output."""

    def __init__(self, files: LogFiles) -> None:
        super().__init__()
        self.files = files

    def emit(self, record: logging.LogRecord) -> None:
        """One record."""
        try:
            text = record.getMessage()
            if record.exc_info:
                text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
            self.files.server(LEVELS.get(record.levelname, record.levelname), record.name, text)
        except Exception:
            self.handleError(record)
