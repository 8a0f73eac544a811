"""The messages between a host and the child process in which an archive's worker answers batches.

A message is a line of JSON and the bytes whose number stands in that line. The host numbers its messages, and an answer has the
number of its question: one with another number is nobody's answer, and ends the child. Each side says which `VERSION` it
speaks when the child starts. Nothing else crosses, so neither side runs code of the other.

    {"id": 1, "version": 3, "start": {"batch_size": 8}}
                                  -> {"id": 1, "version": 3, "started": {"engine": ..., "profile": ...}}
    {"id": 2, "requests": [{"headers": {}, "query": {}, "bytes": 5}, ...]}
                                  -> {"id": 2, "answers": [{"status": 200, "content_type": "", "headers": {}, "bytes": 9}, ...],
                                      "times": [...], "metrics": [...], "dead": false}
    a message that cannot be answered -> {"id": 2, "error": "what happened"}

With "n" and "seconds" the requests are answered n at a time, again and again for so many seconds. "times" has the milliseconds
of every batch, and "answers" has the answers of the last batch. "dead": the child ends itself, because its engine is gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

VERSION = 3  # of this format, and what slotwise.json calls "worker"; 2 had no ids, and went over standard input and output
LONGEST_LINE = 64 << 20
LARGEST_BODY = 1 << 31
METRIC: tuple[Any, ...] = (str, (int, float), str, (int, type(None)))  # name, value, unit, HTTP status


class BrokenMessage(ValueError):
    """What came is no message, or not the one that had to come. Nothing that comes after it can be trusted."""


class MessageSource(Protocol):
    """Where messages are read. Both methods give less than was asked for at the end only."""

    def readline(self, limit: int, /) -> bytes:
        """The next line with its end, at most `limit` bytes of it."""

    def read(self, size: int, /) -> bytes:
        """The next `size` bytes."""


@dataclass(frozen=True)
class Message:
    """One message. head: its line. bodies: the bytes behind it."""

    head: dict[str, Any]
    bodies: list[bytes]

    @property
    def id(self) -> int:
        """Its number, or that of the message that it answers. Raises BrokenMessage where it has none."""
        number = self.head.get("id")
        if type(number) is not int:
            raise BrokenMessage("a message without an id")
        return number


@dataclass(frozen=True)
class ChildAnswer:
    """One request's answer, as it crosses."""

    status: int
    content_type: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What a child answers to a batch. metrics: name, value, unit ("ms", "%" or "", a count), HTTP status or None, each.

    times: the milliseconds of each run of it. dead: the child answers nothing more.
    """

    answers: list[ChildAnswer]
    metrics: list[tuple[str, float, str, int | None]]
    times: list[dict[str, float]]
    dead: bool


def encoded(head: Mapping[str, Any], bodies: Sequence[bytes] = ()) -> bytes:
    """A message as it crosses. Raises TypeError or ValueError where its head is no JSON."""
    return b"".join([json.dumps(head).encode("ascii"), b"\n", *bodies])


def read_message(source: MessageSource, counted: str) -> Message | None:
    """The next message; None at the end. Raises BrokenMessage where something else comes, or half of one.

    counted: the key of the head whose entries have the number of their `bytes`.
    """
    line = source.readline(LONGEST_LINE)
    if not line:
        return None
    try:
        head = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict):
        raise BrokenMessage(f"no message, but {line[:80]!r}")
    sizes = [_size(entry) for entry in _list(head, counted)]
    bodies = [source.read(size) for size in sizes]
    if any(len(body) != size for body, size in zip(bodies, sizes, strict=True)):
        raise BrokenMessage("half a message")
    return Message(head, bodies)


def reply_of(message: Message, n: int) -> Reply:
    """The answers to n requests. Raises BrokenMessage where they are not n, or not answers."""
    entries = _list(message.head, "answers")
    if len(entries) != n:
        raise BrokenMessage(f"{len(entries)} answers to {n} requests")
    answers = [_answer(entry, body) for entry, body in zip(entries, message.bodies, strict=True)]
    metrics = [_metric(number) for number in _list(message.head, "metrics")]
    return Reply(answers, metrics, _list(message.head, "times"), bool(message.head.get("dead")))


def _list(head: Mapping[str, Any], key: str) -> list[Any]:
    entries = head.get(key, [])
    if not isinstance(entries, list):
        raise BrokenMessage(f"{key} is no list")
    return entries


def _size(entry: Any) -> int:
    size = entry.get("bytes") if isinstance(entry, dict) else None
    if type(size) is not int or not 0 <= size <= LARGEST_BODY:
        raise BrokenMessage("a body of no known size")
    return size


def _answer(entry: Mapping[str, Any], body: bytes) -> ChildAnswer:
    status, content_type, headers = (entry.get(key) for key in ("status", "content_type", "headers"))
    if type(status) is not int or not isinstance(content_type, str) or not isinstance(headers, dict):
        raise BrokenMessage("an answer without a status, a content type or headers")
    return ChildAnswer(status, content_type, {name: str(value) for name, value in headers.items()}, body)


def _metric(number: Any) -> tuple[str, float, str, int | None]:
    if not isinstance(number, list) or len(number) != len(METRIC):
        raise BrokenMessage("a metric that is none")
    if not all(isinstance(value, kind) for value, kind in zip(number, METRIC, strict=True)):
        raise BrokenMessage("a metric that is none")
    name, value, unit, code = number
    return name, value, unit, code
