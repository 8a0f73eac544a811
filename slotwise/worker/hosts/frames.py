"""The frames between a host's front and the process in which an archive's worker answers: binary, each with an id.

A frame is a head of 24 bytes (what it is, flags, how long the text and the body are, an id), a text and a body. The front
makes the ids, and never one twice; an answer has its request's. The same frames carry a batch that is answered as a whole, and
answers that come one by one.

    front -> worker   START     text: JSON {"version": 1, "batch_size": 8, "streams": true}
                      REQUEST   text: headers and query; body. Flag MORE: another request of the same batch follows.
                                Flag WATCHED: a REPORT of its batch is wanted; IF_FAILED: where a call of the model failed
                      CANCEL    id of a request whose answer nobody wants any more: what has not begun of it is not run
                      SENT      id of a request that comes next; body: a piece of its answer that another worker has sent
    worker -> front   STARTED   text: JSON {"version": 1, "engine": ..., "profile": ...}
                      FAILED    text: why it cannot start
                      ANSWER    id of a request; text: status, content type and headers; body
                      DONE      the batch is over, each of it answered. Flag DEAD: the worker ends, its engine is gone
                      NUMBERS   text: JSON {"metrics": [[name, value, unit, status], ...]}
                      REPORT    text: JSON of what the batch did, before its answers; only where it is wanted, and known
                      BEAT      it lives; nobody has asked. Flag TURN: its streams have had a turn
                      PIECE     id of a request. Flag MORE: body: the next piece of its answer; text: as an ANSWER's, of the
                                first one. Without MORE: the answer is whole, or was cancelled

CANCEL is for a worker that says `"cancels": true` when it has STARTED, or that streams. It answers the request all the same.
SENT, PIECE and the flag STREAM are for a front that knows streams (it says so in START), and for a worker that says
`"streams": {"slots": 8}` when it has STARTED. That one takes each REQUEST by itself and at any time, sends no DONE but a DEAD
one, and answers one with the flag STREAM in pieces. An ANSWER to such a request is its error, whatever was sent before. Of a
worker that says `"streams": {..., "whole": true}` it may be the whole answer, too, where no piece was sent.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotwise.worker.answer import Answer

VERSION = 1
HEAD = struct.Struct("<BBHIQQ")  # kind, flags, 0, bytes of the text, bytes of the body, id
START, REQUEST, CANCEL, SENT = 1, 2, 3, 4
STARTED, FAILED, ANSWER, DONE, NUMBERS, BEAT, PIECE, REPORT = 17, 18, 19, 20, 21, 22, 23, 24
FROM_FRONT, FROM_WORKER = range(START, SENT + 1), range(STARTED, REPORT + 1)
MORE = 1  # a flag of REQUEST and of PIECE
STREAM = 2  # a flag of REQUEST
WATCHED, IF_FAILED = 4, 8  # flags of REQUEST
DEAD = 1  # a flag of DONE
TURN = 1  # a flag of BEAT
LONGEST_TEXT = 16 << 20
LARGEST_BODY = 1 << 31


class BrokenFrame(ValueError):
    """What came is no frame, or not the one that had to come. Nothing that comes after it can be trusted."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame."""

    kind: int
    id: int = 0
    text: bytes = b""
    body: bytes = b""
    flags: int = 0

    @property
    def head(self) -> bytes:
        """What is sent before its text and its body."""
        return HEAD.pack(self.kind, self.flags, 0, len(self.text), len(self.body), self.id)

    def json(self) -> dict[str, Any]:
        """Its text as an object of JSON. Raises BrokenFrame where it is none."""
        try:
            parsed = json.loads(self.text)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise BrokenFrame(f"no object, but {self.text[:80]!r}")
        return parsed


def of_json(kind: int, about: Mapping[str, Any]) -> Frame:
    """A frame whose text is an object."""
    return Frame(kind, text=json.dumps(about).encode("ascii"))


def sizes(head: bytes | memoryview, kinds: range) -> tuple[int, int, int, int, int]:
    """Kind, flags, bytes of the text, bytes of the body and id. Raises BrokenFrame where no frame begins so."""
    kind, flags, nothing, text, body, identity = HEAD.unpack(head)
    if kind not in kinds or nothing or text > LONGEST_TEXT or body > LARGEST_BODY:
        raise BrokenFrame(f"no frame, but {bytes(head)!r}")
    return kind, flags, text, body, identity


class FrameReader:
    """Cuts what comes in pieces of any size into frames. kinds: of frame that may come.

    A large body is collected in a block of its own, so that it is copied once.
    """

    def __init__(self, kinds: range) -> None:
        self.kinds = kinds
        self.rest = b""  # the beginning of a frame
        self.large: _Large | None = None

    @property
    def between_frames(self) -> bool:
        """Whether everything that came is complete frames."""
        return not self.rest and self.large is None

    def frames(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with these bytes. Raises BrokenFrame."""
        at = 0
        if self.large is not None:
            at = self.large.take(data)
            if not self.large.complete:
                return
            yield self.large.frame()
            self.large = None
        elif self.rest:
            data, self.rest = self.rest + data, b""
        while len(data) - at >= HEAD.size:
            kind, flags, text, body, identity = sizes(data[at : at + HEAD.size], self.kinds)
            begin = at + HEAD.size
            end = begin + text + body
            if end <= len(data):
                yield Frame(kind, identity, data[begin : begin + text], data[begin + text : end], flags)
                at = end
            elif len(data) - begin >= text and body:
                self.large = _Large(kind, flags, identity, data[begin : begin + text], body)
                self.large.take(data[begin + text :])
                return
            else:
                break
        self.rest = data[at:]


class _Large:
    """A frame whose body has not come whole yet."""

    def __init__(self, kind: int, flags: int, identity: int, text: bytes, size: int) -> None:
        self.kind, self.flags, self.id, self.text = kind, flags, identity, text
        self.pieces: list[bytes] = []
        self.missing = size

    @property
    def complete(self) -> bool:
        return not self.missing

    def take(self, data: bytes) -> int:
        """Take of it what belongs to the body; returns how much that was."""
        piece = data[: self.missing]
        self.pieces.append(piece)
        self.missing -= len(piece)
        return len(piece)

    def frame(self) -> Frame:
        return Frame(self.kind, self.id, self.text, b"".join(self.pieces), self.flags)


def request_text(headers: Mapping[str, str], query: str) -> bytes:
    """The text of a REQUEST: names and values of the headers, a line each, and the query as it stands in the address.

    Raises ValueError where a header has a line break or a NUL in it.
    """
    lines = [line for pair in headers.items() for line in pair]
    text = "\n".join(lines)
    if text.count("\n") != max(0, len(lines) - 1) or "\0" in text:
        raise ValueError("a line break or a NUL in a header")
    return f"{text}\0{query}".encode("utf-8", "surrogatepass")


def request_about(text: bytes) -> tuple[dict[str, str], str]:
    """The headers and the query that a REQUEST's text has. Raises BrokenFrame."""
    try:
        headers, _, query = text.decode("utf-8", "surrogatepass").partition("\0")
        lines = headers.split("\n") if headers else []
        return dict(zip(lines[::2], lines[1::2], strict=True)), query
    except ValueError:
        raise BrokenFrame("a request whose text cannot be read") from None


def answer_text(status: int, content_type: str, headers: Mapping[str, str]) -> bytes:
    """The text of an ANSWER. The parts have been checked (slotwise.worker.answer): no line break, Latin-1."""
    return "\n".join([str(status), content_type, *(line for pair in headers.items() for line in pair)]).encode("latin-1")


def of_answer(identity: int, answer: Answer) -> Frame:
    """The ANSWER to the request with this id."""
    return Frame(ANSWER, identity, answer_text(answer.status, answer.content_type, answer.headers), answer.body)


def answer_about(text: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Status and headers that an ANSWER's text has, content-type first where it has one. Raises BrokenFrame."""
    lines = text.split(b"\n")
    if len(lines) < 2 or len(lines) % 2 or not re.fullmatch(b"[2-5][0-9]{2}", lines[0]):
        raise BrokenFrame(f"no answer, but {text[:80]!r}")
    headers = [(b"content-type", lines[1])] if lines[1] else []
    headers += zip(map(bytes.lower, lines[2::2]), lines[3::2], strict=True)
    return int(lines[0]), headers
