"""Let only the system that is measured run: an idle server may poll its queues, and takes that time from all the others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType

import psutil

AWAKE_S = 0.5  # what a system gets for timers that ran out while it was stopped


class OneAtATime:
    """Systems of which at most one runs; the others are stopped (SIGSTOP), from `with` on until its end.

    roots: each system's first process by name, whose children are stopped with it.
    """

    def __init__(self, roots: Mapping[str, int]) -> None:
        self.roots = roots

    def __enter__(self) -> OneAtATime:
        for pid in self.roots.values():
            _send(pid, signal.SIGSTOP)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for pid in self.roots.values():
            _send(pid, signal.SIGCONT)

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """This one runs meanwhile. A name without a process is fine."""
        pid = self.roots.get(name)
        if pid is None:
            yield
            return
        _send(pid, signal.SIGCONT)
        time.sleep(AWAKE_S)
        try:
            yield
        finally:
            _send(pid, signal.SIGSTOP)


def _send(root: int, number: signal.Signals) -> None:
    """Send a signal to a process and all that it has started."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(root)
        for each in [process, *process.children(recursive=True)]:
            with suppress(ProcessLookupError):
                os.kill(each.pid, number)
