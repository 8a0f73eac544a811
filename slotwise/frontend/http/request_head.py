"""Read a request's head, strictly: what two servers could read in two ways is refused.

httptools takes its lines apart. They end with CRLF, none is folded, no name has a blank behind it. What says how a body is to
be read stands there once; of encodings several lines are one list.
Source: RFC 9112, sections 2.2, 3, 5 and 6.3; RFC 9110, section 5.3.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import httptools

from slotwise.backends.exchange import RawHeaders
from slotwise.frontend.http.http_framing import Body, ChunkedBody, Malformed, SizedBody

END_OF_HEAD = b"\r\n\r\n"
ENCODING = b"content-encoding"
KEPT_BYTES, KEPT = 2048, 256  # clients send the same head again and again: so many that are not longer are not read twice
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,17}").fullmatch
_HOST = re.compile(rb"[!-~]*").fullmatch
_FIRST_LINE = re.compile(rb"(?!CONNECT )[A-Z\-]+ (?:/|https?://[!-.0-~]++/?)[!-\"$-~]*+ HTTP/1\.[01]\r\n").match


@dataclass(frozen=True)
class HeadLimits:
    """How large a request's head may be, in bytes and in header lines."""

    max_bytes: int = 64 * 1024
    max_lines: int = 100

    def check(self, data: bytearray, at: int, end: int) -> None:
        """Check a head, or what has come of one. Raises HeadTooLarge."""
        if end - at > self.max_bytes or data.count(b"\r\n", at, end) - 2 > self.max_lines:  # its first line, and the empty one
            raise HeadTooLarge(f"a request's head is limited to {self.max_bytes} bytes and {self.max_lines} lines")


class HeadTooLarge(Exception):
    """A head is over its limits; the text says which."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What the head of a request says. path: unquoted; raw_path and query: as they stand there. headers: names in lower case.

    body: makes what reads the body behind it. keep_alive: whether its client wants to ask again. expects_continue: it sends the
    body once it is told to.
    """

    method: str
    path: str
    raw_path: bytes
    query: bytes
    version: str
    headers: RawHeaders
    body: Callable[[], Body]
    keep_alive: bool
    expects_continue: bool


class _HeadLines:
    """What httptools tells of a head."""

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""
        self.headers: RawHeaders = []
        self.keep_alive = False

    def on_url(self, url: bytes) -> None:
        """The address, or a part of it."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One line."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The end of the head. Later the parser knows no more whether the connection is to be kept."""
        self.keep_alive = self.parser.should_keep_alive()


def check_line_ends(data: bytearray | bytes, at: int, end: int) -> None:
    """Check what has come of a head: CRLF and nothing else ends a line. Raises Malformed."""
    if data.count(b"\n", at, end) != data.count(b"\r\n", at, end):
        raise Malformed("a line of the head does not end with CRLF")


def read_head(head: bytes) -> RequestHead:
    """Read a whole head, with the empty line at its end. Raises Malformed."""
    return _known(head) if len(head) <= KEPT_BYTES else _read(head)


def _read(head: bytes) -> RequestHead:
    _check_lines(head)
    lines = _HeadLines()
    parser = lines.parser
    try:
        with suppress(httptools.HttpParserUpgrade):  # RFC 9110 (7.8) allows to ignore it
            parser.feed_data(head)
        url = httptools.parse_url(lines.url)
    except (httptools.HttpParserError, httptools.HttpParserInvalidURLError) as error:
        raise Malformed(str(error)) from error
    finally:
        del lines.parser  # they hold each other
    version, raw_path = parser.get_http_version(), url.path or b"/"
    return RequestHead(
        parser.get_method().decode("ascii"),
        urllib.parse.unquote(raw_path.decode("ascii")),
        raw_path,
        url.query or b"",
        version,
        _one_encoding([(name, value.rstrip(b" \t")) for name, value in lines.headers]),  # blanks around a value are none of it
        _body(version, lines.headers),
        version != "1.0" and lines.keep_alive,
        version != "1.0" and any(name == b"expect" and value.lower() == b"100-continue" for name, value in lines.headers),
    )


_known = lru_cache(KEPT)(_read)


def _check_lines(head: bytes) -> None:
    check_line_ends(head, 0, len(head))
    if head.count(b"\r") != head.count(b"\n") or b"\0" in head:
        raise Malformed("a line of the head has a CR or a NUL in it")
    if b"\n " in head or b"\n\t" in head:
        raise Malformed("a line of the head is folded")
    if not _FIRST_LINE(head):
        raise Malformed("the first line is no request of HTTP/1.1")


def _one_encoding(headers: RawHeaders) -> RawHeaders:
    """The same with one line of Content-Encoding: several say together how the body was packed, one way after the other."""
    encodings = [value for name, value in headers if name == ENCODING]
    if len(encodings) < 2:
        return headers
    return [header for header in headers if header[0] != ENCODING] + [(ENCODING, b", ".join(encodings))]


def _body(version: str, headers: RawHeaders) -> Callable[[], Body]:
    """What makes the reader of the body that comes behind such a head. Raises Malformed."""
    hosts, lengths, encodings, types, v2_lengths = (list[bytes]() for _ in range(5))
    deciding = {
        b"host": hosts,
        b"content-length": lengths,
        b"transfer-encoding": encodings,
        b"content-type": types,
        b"inference-header-content-length": v2_lengths,
    }
    for name, value in headers:
        if name in deciding:
            deciding[name].append(value)
    if len({*types}) > 1 or len({*v2_lengths}) > 1:
        raise Malformed("a header that says how the body is to be read says two things")
    if len(hosts) > 1 or (not hosts and version == "1.1") or not all(map(_HOST, hosts)):
        raise Malformed("a request has one Host")
    if not encodings:
        if len(lengths) > 1 or (lengths and not _LENGTH(lengths[0])):
            raise Malformed("Content-Length is not one number")
        length = int(lengths[0]) if lengths else 0
        return lambda: SizedBody(length)
    if lengths:
        raise Malformed("a body has a Content-Length or a Transfer-Encoding, not both")
    if version == "1.0" or len(encodings) > 1 or encodings[0].lower() != b"chunked":
        raise Malformed("the only Transfer-Encoding is chunked")
    return ChunkedBody
