"""Ask the worker of an archive of 0.2.0, whose messages have no ids and go over standard input and output.

Its standard streams are put out of everybody's reach before its handler is there. What an id would tell cannot be known: so any
answer that is not a batch's ends the child, because a second answer to one message looks like that.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from slotwise.worker.hosts.child import Worker, WorkerFailed
from slotwise.worker.hosts.messages import Message, encoded

# Its `main` takes `sys.stdin.buffer` and then `os.dup(1)`, once: they get what is theirs, and nobody else does.
LAUNCHER = """
import importlib, os, sys

source, target, nothing, dup = os.fdopen(os.dup(0), "rb"), os.dup(1), os.open(os.devnull, os.O_RDWR), os.dup
os.dup2(nothing, 0)
os.dup2(2, 1)
for descriptor in (source.fileno(), target):
    os.register_at_fork(after_in_child=lambda descriptor=descriptor: os.dup2(nothing, descriptor))


def take_target(descriptor):
    os.dup = dup
    return target


class Once:
    @property
    def buffer(self):
        sys.stdin, os.dup = open(os.devnull), take_target
        return source


sys.stdin = Once()
importlib.import_module(sys.argv[1]).main()
"""


class EarlierWorker(Worker):
    """One child of 0.2.0."""

    def ask(self, message: Mapping[str, Any], bodies: Sequence[bytes], timeout_s: float = 0.0) -> Message:
        """As `Worker.ask`; where the child says that it has no answer it is ended, too."""
        try:
            return super().ask(message, bodies, timeout_s)
        except WorkerFailed:
            self.kill()
            raise

    def _popen(self, python: str, source: int, target: int, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([python, "-P", "-c", LAUNCHER, self.module], stdin=source, stdout=target, **options)

    def _encoded(self, head: Mapping[str, Any], bodies: Sequence[bytes]) -> bytes:
        return encoded({key: value for key, value in head.items() if key not in ("id", "version")}, bodies)

    def _check_id(self, reply: Message) -> None:
        """It has none."""

    def _check_version(self, started: Message) -> None:
        """It says none."""
