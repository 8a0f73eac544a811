"""Read where a request's body ends: one strict reading, and a refusal of all that two servers could read in two ways.

A body is as long as its one Content-Length says, or comes in chunks where `chunked` is the one Transfer-Encoding; never both.
Source: RFC 9112, sections 6.1, 7.1 and 11.2.
"""

from __future__ import annotations

import re

LINE_MAX_BYTES = 256  # of a chunk's size with its extensions
TRAILERS_MAX_BYTES = 8192
TOGETHER = 512  # chunks and lines between them that are read at once: everybody else waits meanwhile
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?").fullmatch
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*").fullmatch


class Malformed(Exception):
    """This is no request that everybody reads in the same way; the text says why."""

    @property
    def kind(self) -> str:
        """What is wrong with it, for a log: in our words, or httptools' name for it, for its message quotes the client."""
        return type(self.__context__).__name__ if self.__context__ else str(self)


class SizedBody:
    """A body of `left` bytes."""

    def __init__(self, left: int) -> None:
        self.left = left

    @property
    def complete(self) -> bool:
        """Whether all of it has come."""
        return not self.left

    def take(self, received: bytearray, at: int, end: int) -> tuple[list[bytes], int]:
        """The parts of the body in received[at:end], and where they end."""
        stop = min(end, at + self.left)
        self.left -= stop - at
        return [bytes(memoryview(received)[at:stop])] if stop > at else [], stop


class ChunkedBody:
    """A body in chunks. Extensions and trailers are read away: nothing of them reaches a model."""

    def __init__(self) -> None:
        self.complete = False
        self._left = 0  # of the chunk that is being read
        self._line = b""  # of which the end has not come yet
        self._next = self._size
        self._trailer_bytes = 0

    def take(self, received: bytearray, at: int, end: int) -> tuple[list[bytes], int]:
        """The parts of the body in received[at:end], as far as they are read at once, and where they end. Raises Malformed."""
        parts: list[bytes] = []
        for _ in range(TOGETHER):
            if at >= end or self.complete:
                break
            if self._left:
                stop = min(end, at + self._left)
                parts.append(bytes(memoryview(received)[at:stop]))
                self._left -= stop - at
                at = stop
            else:
                at = self._take_line(received, at, end)
        return parts, at

    def _take_line(self, received: bytearray, at: int, end: int) -> int:
        most = TRAILERS_MAX_BYTES if self._next == self._trailer else LINE_MAX_BYTES
        line_end = received.find(b"\n", at, end)
        stop = end if line_end < 0 else line_end + 1
        if len(self._line) + stop - at > most:
            raise Malformed("a line between two chunks is too long")
        self._line += received[at:stop]
        if line_end >= 0:
            line, self._line = self._line, b""
            if line[-2:] != b"\r\n" or line.count(b"\r") > 1:
                raise Malformed("a line between two chunks does not end with CRLF")
            self._next(line[:-2])
        return stop

    def _size(self, line: bytes) -> None:
        size = _CHUNK_SIZE(line)
        if size is None:
            raise Malformed("a chunk's size is none")
        self._left = int(size[1], 16)
        self._next = self._end_of_chunk if self._left else self._trailer

    def _end_of_chunk(self, line: bytes) -> None:
        if line:
            raise Malformed("a chunk is longer than its size")
        self._next = self._size

    def _trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        if not line:
            self.complete = True
        elif self._trailer_bytes > TRAILERS_MAX_BYTES or not _TRAILER(line):
            raise Malformed("a trailer is no header line")


Body = SizedBody | ChunkedBody
