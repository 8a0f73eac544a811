"""Where what a worker prints goes: to a file, or line by line to whoever wants to label it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

READ_BYTES = 1 << 16
LONGEST_LINE = 1 << 16


class Printed(Protocol):
    """What one worker prints. descriptor: what it gets as its output, as long as it is opened here."""

    @property
    def descriptor(self) -> int:
        """For the new process."""

    def last_line(self) -> str:
        """The last line that is not blank; "" where there is none."""


class Prints(Protocol):
    """Where workers' output goes."""

    def opened(self, name: str) -> contextlib.AbstractContextManager[Printed]:
        """For the worker of that name; within, its process is started."""


@dataclass(eq=False)
class PrintedFile:
    """The part of a file that one worker of `model` adds to. shared: another model's may have added to it, too."""

    path: Path
    descriptor: int
    begin: int
    model: str
    shared: bool = False

    def last_line(self) -> str:
        """See Printed; "" where another model's worker may have printed it."""
        if self.shared:
            return ""
        with contextlib.suppress(OSError), self.path.open("rb") as source:
            source.seek(max(self.begin, self.path.stat().st_size - LONGEST_LINE))
            return _last(source.read().decode("utf-8", "replace").splitlines())
        return ""


@dataclass(frozen=True)
class FilePrints:
    """Everything is added to one file. all: the workers that may print now."""

    path: Path
    all: WeakSet[PrintedFile] = field(default_factory=WeakSet)

    @contextmanager
    def opened(self, name: str) -> Iterator[PrintedFile]:
        """See Prints."""
        with self.path.open("ab") as output:
            printed = PrintedFile(self.path, output.fileno(), output.tell(), name.rpartition("-")[0])
            for other in self.all:
                if other.model != printed.model:
                    other.shared = printed.shared = True
            self.all.add(printed)
            yield printed


@dataclass
class PrintedLines:
    """What a pipe brings, line by line. take(lines): gets those of one read, on the event loop; a long one comes in pieces."""

    descriptor: int
    take: Callable[[list[str]], None]
    last: str = ""
    begun: bytes = b""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def last_line(self) -> str:
        """See Printed."""
        return self.last

    def read(self, source: int) -> None:
        """Take what has come; at the end of the pipe it is closed."""
        try:
            data = os.read(source, READ_BYTES)
        except BlockingIOError:
            return
        lines = (self.begun + data).split(b"\n")
        self.begun = lines.pop()
        if len(self.begun) > LONGEST_LINE or not data:
            lines.append(self.begun)
            self.begun = b""
        if texts := [text for line in lines if (text := line.decode("utf-8", "replace").rstrip())]:
            self.last = texts[-1].strip()
            self.take(texts)
        if not data:
            self.loop.remove_reader(source)
            os.close(source)


@dataclass(frozen=True)
class LinePrints:
    """Every line goes to take(name of the worker, lines)."""

    take: Callable[[str, list[str]], None]

    @contextmanager
    def opened(self, name: str) -> Iterator[PrintedLines]:
        """See Prints."""
        source, target = os.pipe()
        try:
            os.set_blocking(source, False)
            lines = PrintedLines(target, lambda lines: self.take(name, lines))
            lines.loop.add_reader(source, lines.read, source)
            yield lines
        finally:
            os.close(target)


def _last(lines: list[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
