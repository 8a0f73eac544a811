"""Decide where a request ends: one strict reading, and a refusal of all that two servers could read in two ways.

httptools takes a head apart, but it does not say where the body ends: what it takes for a body, for an upgrade or for the next
request does not count here. A head's lines end with CRLF, none is folded, no name has a blank behind it. A body is as long as
its one Content-Length says, or comes in chunks where `chunked` is the one Transfer-Encoding; never both.
Source: RFC 9112, sections 2.2, 5, 6.1, 6.3, 7.1 and 11.2.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

import httptools

from slotwise.backends.exchange import RawHeaders

END_OF_HEAD = b"\r\n\r\n"
LINE_MAX_BYTES = 256  # of a chunk's size with its extensions
TRAILERS_MAX_BYTES = 8192
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,17}").fullmatch
_HOST = re.compile(rb"[!-~]*").fullmatch
_FIRST_LINE = re.compile(rb"(?!CONNECT )[A-Z\-]+ (?:/|https?://[!-.0-~]+/?)[!-\"$-~]* HTTP/1\.[01]\r\n").match
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?").fullmatch
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*").fullmatch


@dataclass(frozen=True)
class HeadLimits:
    """How large a request's head may be, in bytes and in header lines."""

    max_bytes: int = 64 * 1024
    max_lines: int = 100

    def check(self, data: bytearray, at: int, end: int) -> None:
        """Check a head, or what has come of one. Raises HeadTooLarge."""
        if end - at > self.max_bytes or data.count(b"\r\n", at, end) - 2 > self.max_lines:  # its first line, and the empty one
            raise HeadTooLarge(f"a request's head is limited to {self.max_bytes} bytes and {self.max_lines} lines")


class Malformed(Exception):
    """This is no request that everybody reads in the same way; the text says why."""


class HeadTooLarge(Exception):
    """A head is over its limits; the text says which."""


def check_line_ends(data: bytearray | bytes, at: int, end: int) -> None:
    """Check what has come of a head: CRLF and nothing else ends a line. Raises Malformed."""
    if data.count(b"\n", at, end) != data.count(b"\r\n", at, end):
        raise Malformed("a line of the head does not end with CRLF")


def check_lines(head: bytes) -> None:
    """Check the lines of a whole head. Raises Malformed."""
    check_line_ends(head, 0, len(head))
    if head.count(b"\r") != head.count(b"\n") or b"\0" in head:
        raise Malformed("a line of the head has a CR or a NUL in it")
    if b"\n " in head or b"\n\t" in head:
        raise Malformed("a line of the head is folded")
    if not _FIRST_LINE(head):
        raise Malformed("the first line is no request of HTTP/1.1")


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
        """The parts of the body in received[at:end], and where they end. Raises Malformed."""
        parts: list[bytes] = []
        while at < end and not self.complete:
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


def body_of(version: str, headers: RawHeaders) -> Body:
    """How the body comes of a request with this head; names in lower case. Raises Malformed."""
    hosts, lengths, encodings = list[bytes](), list[bytes](), list[bytes]()
    deciding = {b"host": hosts, b"content-length": lengths, b"transfer-encoding": encodings}
    for name, value in headers:
        if name in deciding:
            deciding[name].append(value)
    if len(hosts) > 1 or (not hosts and version == "1.1") or not all(map(_HOST, hosts)):
        raise Malformed("a request has one Host")
    if not encodings:
        if not lengths:
            return SizedBody(0)
        if len(lengths) > 1 or not _LENGTH(lengths[0]):
            raise Malformed("Content-Length is not one number")
        return SizedBody(int(lengths[0]))
    if lengths:
        raise Malformed("a body has a Content-Length or a Transfer-Encoding, not both")
    if version == "1.0" or len(encodings) > 1 or encodings[0].lower() != b"chunked":
        raise Malformed("the only Transfer-Encoding is chunked")
    return ChunkedBody()


class _HeaderLines:
    """What httptools tells of a head."""

    def __init__(self) -> None:
        self.found: RawHeaders = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """One line."""
        self.found.append((name.lower(), value))


def end_of_requests(data: bytearray, most: int) -> int | None:
    """Where the first `most` requests in data end; None where no more than these have begun, or they cannot be read."""
    at = 0
    try:
        for _ in range(most):
            head_end = data.find(END_OF_HEAD, at)
            if head_end < 0:
                return None
            start, at = at, head_end + len(END_OF_HEAD)
            lines = _HeaderLines()
            parser = httptools.HttpRequestParser(lines)
            with suppress(httptools.HttpParserUpgrade):
                parser.feed_data(bytes(memoryview(data)[start:at]))
            body = body_of(parser.get_http_version(), lines.found)
            _, at = body.take(data, at, len(data))
            if not body.complete:
                return None
    except (Malformed, httptools.HttpParserError):
        return None  # which is answered in its turn
    return at if len(data) - at > len(b"\r\n") else None
