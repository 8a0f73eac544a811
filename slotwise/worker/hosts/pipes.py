"""A host's ends of the two pipes to its child: reading and writing end at a time, and when the child has ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
from collections.abc import Callable

from slotwise.worker.hosts.messages import BrokenMessage

LOOK_S = 0.2  # a child that has ended is noticed so soon, also where another process still holds its end of a pipe
CHUNK_BYTES = 1 << 16
PIPE_BYTES = 1 << 20  # a batch of photos passes in one piece; Linux lets anybody have that much


class Pipe:
    """The host's end of a pipe. until: on time.monotonic(), when waiting ends with a TimeoutError; None: never.

    alive(): whether the child runs. The pipe itself does not tell: a process that the child has made may hold its other end.
    """

    def __init__(self, descriptor: int, events: int, alive: Callable[[], bool]) -> None:
        self.descriptor, self.alive = descriptor, alive
        self.until: float | None = None
        os.set_blocking(descriptor, False)
        with contextlib.suppress(OSError, AttributeError):  # as far as the system and its limits have it
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.ready = select.poll()
        self.ready.register(descriptor, events)

    def wait(self) -> None:
        """Wait until there is something to do."""
        while True:
            left_s = LOOK_S if self.until is None else self.until - time.monotonic()
            if self.ready.poll(1000 * max(0.0, min(left_s, LOOK_S))):
                return
            if left_s <= 0:
                raise TimeoutError
            if not self.alive() and not self.ready.poll(0):  # its last words come before its end
                raise BrokenMessage("the worker has ended")

    def close(self) -> None:
        """Close this end."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class QuestionPipe(Pipe):
    """What goes to the child."""

    def __init__(self, descriptor: int, alive: Callable[[], bool]) -> None:
        super().__init__(descriptor, select.POLLOUT, alive)

    def write(self, data: bytes) -> None:
        """Write all of it."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self.descriptor, left) :]
            except BlockingIOError:
                self.wait()


class AnswerPipe(Pipe):
    """What comes from the child."""

    def __init__(self, descriptor: int, alive: Callable[[], bool]) -> None:
        super().__init__(descriptor, select.POLLIN, alive)
        self.held = bytearray()

    def has_more(self) -> bool:
        """Whether there is something to read, or the child has closed its end."""
        return bool(self.held) or bool(self.ready.poll(0))

    def readline(self, limit: int) -> bytes:
        """The next line with its end; less at the end of all, or where it is longer than `limit`."""
        seen = 0
        while (end := self.held.find(b"\n", seen)) < 0 and len(self.held) < limit:
            seen = len(self.held)
            if not self._more():
                return self._taken(seen)
        return self._taken(end + 1 or limit)

    def read(self, size: int) -> bytes:
        """The next `size` bytes; less at the end of all."""
        while len(self.held) < size and self._more():
            pass
        return self._taken(size)

    def _more(self) -> bool:
        """Wait for more; whether anything came."""
        while True:
            try:
                chunk = os.read(self.descriptor, CHUNK_BYTES)
            except BlockingIOError:
                self.wait()
                continue
            self.held += chunk
            return bool(chunk)

    def _taken(self, size: int) -> bytes:
        taken = bytes(self.held[:size])
        del self.held[:size]
        return taken
