"""Requests that two servers may read in two ways, so that one of them finds a second request in the first one's body.

After the published ones: PortSwigger's "HTTP Desync Attacks" (CL.TE, TE.CL, TE.TE), the mutations of defparam/smuggler, "h2c
Smuggling" by Bishop Fox, the HTTP Garden by Kallus and others, and "Funky Chunks" by Jeppe Bonde Weikop. Each hides a request
whose body is HIDDEN.

    python -m tests.frontend.smuggling PORT      how another server answers them, as requests to /ping
"""

from __future__ import annotations

import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

AIM = "POST /predictions/digits"
HIDDEN = b"hidden request"
LAST_ID = b"the-last-one"
LAST = b"GET /nothing-here HTTP/1.1\r\nHost: x\r\nX-Request-Id: %b\r\nConnection: close\r\n\r\n" % LAST_ID
ODD = [0x00, 0x01, 0x08, 0x09, 0x0B, 0x0C, 0x0D, 0x1F, 0x20, 0x7F, 0x85, 0xA0, 0xFF]  # bytes around a name and its value
PATIENCE_S = 20.0


def hidden(aim: str) -> bytes:
    """The request within."""
    return f"{aim} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(HIDDEN)}\r\n\r\n".encode() + HIDDEN


@dataclass(frozen=True)
class Case:
    """One request. bodies: what a sound server may take for its body; it may refuse it, too, and must where there is none."""

    name: str
    head: list[bytes]
    body: bytes
    bodies: list[bytes] = field(default_factory=list)
    first_line: bytes = b"%s HTTP/1.1"

    def sent(self, aim: str) -> bytes:
        """All of its bytes, as a request to `aim`: method and path."""
        first = self.first_line.replace(b"%s", aim.encode())
        return b"\r\n".join([first, b"Host: x", *self.head]) + b"\r\n\r\n" + self.body


def sized(body: bytes) -> bytes:
    return b"Content-Length: %d" % len(body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNKED = b"Transfer-Encoding: chunked"


def encodings() -> Iterator[tuple[str, list[bytes]]]:
    """Lines that some servers take for `Transfer-Encoding: chunked`, and others do not."""
    for byte in ODD:
        odd = bytes([byte])
        yield f"before the name {byte:#x}", [odd + CHUNKED]
        yield f"after the name {byte:#x}", [b"Transfer-Encoding" + odd + b": chunked"]
        yield f"before the value {byte:#x}", [b"Transfer-Encoding:" + odd + b"chunked"]
        yield f"after the value {byte:#x}", [CHUNKED + odd]
        yield f"a CR and {byte:#x}", [b"X: y\r" + odd + CHUNKED]
    for value in (
        b"xchunked",
        b"chunkedx",
        b"chunk",
        b"CHUNKED",
        b'"chunked"',
        b"'chunked'",
        b"chunked;q=1",
        b"identity",
        b"cow",
    ):
        yield f"value {value!r}", [b"Transfer-Encoding: " + value]
    for value in (b"chunked, identity", b"identity, chunked", b"chunked, chunked", b"gzip, chunked", b",chunked", b"chunked,"):
        yield f"value {value!r}", [b"Transfer-Encoding: " + value]
    yield "no value", [b"Transfer-Encoding:"]
    yield "twice", [CHUNKED, CHUNKED]
    yield "chunked, then another", [CHUNKED, b"Transfer-encoding: cow"]
    yield "another, then chunked", [b"Transfer-Encoding: cow", CHUNKED]
    yield "folded value", [b"Transfer-Encoding:\r\n chunked"]
    yield "folded by a tab", [b"Transfer-Encoding:\r\n\tchunked"]
    yield "folded name", [b"Transfer-Encoding\r\n : chunked"]
    yield "in a folded line", [b"X: y\r\n " + CHUNKED]
    yield "bare LF before", [b"X: y\n" + CHUNKED]
    yield "bare CR before", [b"X: y\r" + CHUNKED]
    yield "name in capitals", [b"TRANSFER-ENCODING: chunked"]


def both_ways(aim: str = AIM) -> Iterator[Case]:
    """CL.TE and TE.CL with each of these lines, before and behind the Content-Length."""
    for name, lines in encodings():
        body = b"0\r\n\r\n" + hidden(aim)
        yield Case(f"CL.TE {name}", [sized(body), *lines], body, [body])
        yield Case(f"CL.TE {name}, in front", [*lines, sized(body)], body, [body])
        inner = b"%x\r\n" % len(hidden(aim))
        body = inner + hidden(aim) + b"\r\n0\r\n\r\n"
        yield Case(f"TE.CL {name}", [b"Content-Length: %d" % len(inner), *lines], body, [])
        yield Case(f"TE {name}", lines, chunk(b"abcde") + b"0\r\n\r\n", [b"abcde"])
    for line in (
        b"Transfer_Encoding: chunked",
        b"X: y " + CHUNKED,
        b"TransferEncoding: chunked",
        b"X-Transfer-Encoding: chunked",
    ):
        body = b"0\r\n\r\n" + hidden(aim)
        yield Case(f"CL.TE {line!r}", [sized(body), line], body, [body])


def lengths(aim: str = AIM) -> Iterator[Case]:
    """Content-Length that is none, or more than one."""
    for value in (
        b"+%d",
        b"-%d",
        b"0x%x",
        b"%d ,",
        b"%d, %d",
        b"0%o",
        b"%d.0",
        b"%de0",
        b" %d x",
        b'"%d"',
        b"%d;",
        b"1_%d",
        b"\x0b%d",
        b"\xa0%d",
    ):
        count = value.count(b"%")
        yield Case(f"length {value!r}", [b"Content-Length: " + value % ((5,) * count)], b"abcde" + hidden(aim), [])
    yield Case("length twice, one zero", [b"Content-Length: 0", sized(hidden(aim))], hidden(aim), [])
    yield Case("length twice, another order", [sized(hidden(aim)), b"Content-Length: 0"], hidden(aim), [])
    yield Case("length twice, the same", [sized(hidden(aim)), sized(hidden(aim))], hidden(aim), [hidden(aim)])
    yield Case("length with a blank before the colon", [b"Content-Length : %d" % len(hidden(aim))], hidden(aim), [])
    yield Case("length with a tab before the colon", [b"Content-Length\t: %d" % len(hidden(aim))], hidden(aim), [])
    yield Case("length folded", [b"Content-Length:\r\n %d" % len(hidden(aim))], hidden(aim), [])
    yield Case("length over 64 bits", [b"Content-Length: 18446744073709551621"], b"abcde" + hidden(aim), [])
    yield Case("length over 32 bits", [b"Content-Length: 4294967301"], b"abcde" + hidden(aim), [])
    yield Case("empty length", [b"Content-Length:"], hidden(aim), [])
    yield Case("bare LF in the head", [b"X: y\nContent-Length: %d" % len(hidden(aim))], hidden(aim), [])
    yield Case("name without a colon", [b"Content-Length %d" % len(hidden(aim))], hidden(aim), [])
    yield Case("NUL in a name", [b"Content\0-Length: 5"], b"abcde" + hidden(aim), [])


def chunks(aim: str = AIM) -> Iterator[Case]:
    """Chunks whose size or end can be read in two ways."""
    end, size = b"\r\n0\r\n\r\n", len(hidden(aim))
    for name, line in {
        "0x": b"0x5", "+": b"+5", "-": b"-5", "blank before": b" 5", "blank behind": b"5 ", "tab": b"5\t",
        "underscore": b"0_5",
        "not hex": b"g", "empty": b"", "point": b"5.", "two numbers": b"5 5", "comma": b"5,",
        "over 64 bits": b"10000000000000005",
        "over 32 bits": b"100000005",
    }.items():  # fmt: skip
        yield Case(f"chunk size {name}", [CHUNKED], line + b"\r\nabcde" + end + hidden(aim), [])
    yield Case("chunk size with zeros", [CHUNKED], b"0005\r\nabcde" + end, [b"abcde"])
    yield Case("chunk extension", [CHUNKED], b"5;a=b\r\nabcde" + end, [b"abcde"])
    yield Case("chunk extension in quotes", [CHUNKED], b'5;a="b;c"\r\nabcde' + end, [b"abcde"])
    yield Case("chunk extension with a bare LF", [CHUNKED], b"5;\nabcde" + end + hidden(aim), [])
    yield Case("chunk extension that hides a chunk", [CHUNKED], b"5;\n%x\r\nabcde\r\n" % size + hidden(aim) + end, [])
    yield Case("chunk extension with a bare CR", [CHUNKED], b"5;a\rb\r\nabcde" + end, [])
    yield Case("chunk extension without end", [CHUNKED], b"5;" + b"a" * 100_000 + b"\r\nabcde" + end, [])
    yield Case("bare LF behind a size", [CHUNKED], b"5\nabcde" + end + hidden(aim), [])
    yield Case("bare CR behind a size", [CHUNKED], b"5\rabcde" + end + hidden(aim), [])
    yield Case("bare LF behind a chunk", [CHUNKED], b"5\r\nabcde\n0\r\n\r\n" + hidden(aim), [])
    yield Case("nothing behind a chunk", [CHUNKED], b"5\r\nabcde0\r\n\r\n" + hidden(aim), [])
    yield Case("two bytes behind a chunk", [CHUNKED], b"5\r\nabcdexx0\r\n\r\n" + hidden(aim), [])
    yield Case("a chunk longer than its size", [CHUNKED], b"5\r\nabcdefgh" + end + hidden(aim), [])
    yield Case("bare LF at the end", [CHUNKED], b"5\r\nabcde\r\n0\r\n\n" + hidden(aim), [])
    yield Case("bare LF behind the last size", [CHUNKED], b"5\r\nabcde\r\n0\n\r\n" + hidden(aim), [])
    yield Case("trailer", [CHUNKED], b"5\r\nabcde\r\n0\r\nX: y\r\n\r\n", [b"abcde"])
    yield Case("trailer of a length", [CHUNKED], b"5\r\nabcde\r\n0\r\nContent-Length: %d\r\n\r\n" % size, [b"abcde"])
    yield Case("trailer that is a request", [CHUNKED], b"5\r\nabcde\r\n0\r\n" + hidden(aim), [])
    yield Case("trailer folded", [CHUNKED], b"5\r\nabcde\r\n0\r\nX: y\r\n z\r\n\r\n" + hidden(aim), [])
    yield Case("trailer with a bare LF", [CHUNKED], b"5\r\nabcde\r\n0\r\nX: y\n\r\n" + hidden(aim), [])
    yield Case("trailer with a blank before the colon", [CHUNKED], b"5\r\nabcde\r\n0\r\nX : y\r\n\r\n" + hidden(aim), [])
    yield Case("trailers without end", [CHUNKED], b"5\r\nabcde\r\n0\r\n" + b"X: y\r\n" * 20_000, [])


def heads(aim: str = AIM) -> Iterator[Case]:
    """Upgrades, versions, and first lines."""
    body = hidden(aim)
    for upgrade in (b"h2c", b"websocket", b"TLS/1.0", b"HTTP/2.0, h2c"):
        for connection in (b"Upgrade", b"Upgrade, HTTP2-Settings", b"keep-alive, upgrade"):
            lines = [b"Connection: " + connection, b"Upgrade: " + upgrade, b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"]
            yield Case(f"upgrade {upgrade!r} {connection!r}", [*lines, sized(body)], body, [body])
            yield Case(f"upgrade {upgrade!r} {connection!r}, chunked", [*lines, CHUNKED], chunk(body) + b"0\r\n\r\n", [body])
    yield Case("chunked in HTTP/1.0", [CHUNKED], b"0\r\n\r\n" + body, [], b"%s HTTP/1.0")
    yield Case("CONNECT", [sized(body)], body, [], b"CONNECT /x HTTP/1.1")
    yield Case("HTTP/1.2", [sized(body)], body, [], b"%s HTTP/1.2")
    yield Case("HTTP/2.0", [sized(body)], body, [], b"%s HTTP/2.0")
    yield Case("no version", [sized(body)], body, [], b"%s")
    yield Case("two blanks", [sized(body)], body, [], b"POST  / HTTP/1.1")
    yield Case("a tab", [sized(body)], body, [], b"POST\t/ HTTP/1.1")
    yield Case("blanks behind the version", [sized(body)], body, [], b"%s HTTP/1.1 ")
    yield Case("a second request in the first line", [sized(body)], body, [], b"%s HTTP/1.1\nGET / HTTP/1.1")
    yield Case("a CR in the first line", [sized(body)], body, [], b"%s\rx HTTP/1.1")
    yield Case("two hosts", [b"Host: y", sized(body)], body, [])
    yield Case("a blank behind a name", [b"X : y", sized(body)], body, [])
    yield Case("a header without a name", [b": y", sized(body)], body, [])
    yield Case("a folded first header", [b" X: y", sized(body)], body, [])
    yield Case("Expect that nobody knows", [b"Expect: 100-continuex", sized(body)], body, [body])


FAMILIES = {"heads": heads, "lengths": lengths, "chunks": chunks, "both ways": both_ways}


@dataclass(frozen=True)
class Outcome:
    """What was received. ended: the server closed the connection. last: the request behind it was answered."""

    statuses: list[int]
    answers: bytes
    ended: bool
    last: bool


_ANSWER = re.compile(rb"HTTP/1\.1 (\d\d\d) .*?\r\n\r\n", re.DOTALL | re.IGNORECASE)


def tried(
    address: tuple[str, int],
    case: Case,
    aim: str = AIM,
    patience_s: float = PATIENCE_S,
    pause_s: float = 0.0,
    behind: bytes = LAST,
) -> Outcome:
    """Send it and, `behind` it, a request that says who it is; read until that is answered, or the end.

    pause_s: between its head and its body, so that they are read apart.
    """
    received, ended = b"", False
    with socket.create_connection(address, timeout=patience_s) as connection:
        try:
            head, blank, body = case.sent(aim).partition(b"\r\n\r\n")
            if pause_s:
                connection.sendall(head + blank)
                time.sleep(pause_s)
            connection.sendall(body + behind if pause_s else head + blank + body + behind)
            while not ended:
                read = connection.recv(65536)
                received, ended = received + read, not read
        except TimeoutError:
            pass
        except OSError:
            ended = True
    statuses = [int(status) for status in _ANSWER.findall(received) if status != b"100"]
    return Outcome(statuses, received, ended, LAST_ID in received)


def main() -> None:
    """Show how a server answers them, one after the other. To /ping, for many servers hang up after an error."""
    count: Counter[str] = Counter()
    for family, cases in FAMILIES.items():
        for case in cases("GET /ping"):
            found = tried(("127.0.0.1", int(sys.argv[1])), case, "GET /ping", 0.5, 0.01, b"")
            answers = len(found.statuses)
            kind = {0: "no answer", 1: "one answer"}.get(answers, "the hidden request is answered, too")
            if answers == 1 and not case.bodies:
                kind = "refused" if found.ended else "one answer, though it can be read in two ways"
            count[f"{family}: {kind}"] += 1
            print(f"{family}: {case.name:50} {found.statuses} {'ended' if found.ended else 'open'}: {kind}")
    for what, times in sorted(count.items()):
        print(times, what)


if __name__ == "__main__":
    main()
