"""Speak the binary protocol between a server's Java front end and its Python worker, from the front end's side.

Both servers pack big-endian 32-bit lengths before every string, and -1 where a list ends.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slotwise.bench.bodies import RequestBody

END = struct.pack("!i", -1)


class WrongIds(Exception):
    """The ids of the answers are not those of the requests."""


@dataclass(frozen=True)
class SlotAnswer:
    """One slot's answer, as the front end would send it to the client."""

    code: int
    body: bytes
    content_type: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def value(self) -> Any:
        """The body as JSON; as text where it is not JSON, and as it is where it is not text."""
        for read in (json.loads, bytes.decode):
            try:
                return read(self.body)
            except ValueError:
                continue
        return self.body

    def kept_headers(self) -> dict[str, str]:
        """Its headers without what is the batch's: its place there, and times."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        return {name: value for name, value in headers.items() if not (name.startswith("x-batch-") or name.endswith("-ms"))}


def load_message(kind: str, model_dir: str, name: str, handler: str, batch_size: int, io_name: str) -> bytes:
    """The command that makes a worker load a model on the CPU. io_name: MMS's two log pipes."""
    message = b"L" + _text(name) + _text(model_dir) + struct.pack("!i", batch_size) + _text(handler) + END
    return message + (_text("") + struct.pack("!?", True) if kind == "torchserve" else _text(io_name))


def predict_message(bodies: Sequence[RequestBody], first: int = 0) -> bytes:
    """The message that carries one batch. first: the number of its first request; no two requests have the same."""
    message = b"I"
    for i, body in enumerate(bodies, first):
        message += _text(_id(i)) + _text("Content-Type") + _text(body.content_type) + END
        if body.field is not None:
            message += _text(body.field) + _text(body.content_type) + _text(body.data)
        message += END
    return message + END


def read_status(connection: socket.socket) -> tuple[int, str]:
    """Read the worker's code and message for the command as a whole."""
    return _integer(connection), _string(connection).decode("utf-8", "replace")


def read_answers(connection: socket.socket, first: int = 0) -> list[SlotAnswer]:
    """Read the slots that follow the status, by the ids in front of them: the front end sends each to whose id that is.

    Raises WrongIds where these are not those of the batch, each once.
    """
    answers: dict[str, SlotAnswer] = {}
    while (length := _integer(connection)) != -1:
        name = _exactly(connection, length).decode("utf-8", "replace")
        content_type = _string(connection).decode()
        code = _integer(connection)
        _string(connection)  # the reason phrase
        headers = {_string(connection).decode(): _string(connection).decode() for _ in range(_integer(connection))}
        twice = name in answers
        answers[name] = SlotAnswer(code, _string(connection), content_type, headers)
        if twice:
            raise WrongIds(f"two answers have the id of one request, {name[:40]!r}")
    asked = [_id(first + i) for i in range(len(answers))]
    if set(asked) != answers.keys():
        raise WrongIds(f"an answer has the id of no request: {min(answers.keys() - set(asked))[:40]!r}")
    return [answers[name] for name in asked]


def _id(number: int) -> str:
    """The id of a request."""
    return f"check-{number}"


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("!i", len(data)) + data


def _integer(connection: socket.socket) -> int:
    number: int = struct.unpack("!i", _exactly(connection, 4))[0]
    return number


def _string(connection: socket.socket) -> bytes:
    return _exactly(connection, _integer(connection))


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        block = connection.recv(min(length - len(data), 1 << 20))
        if not block:
            raise ConnectionError("the worker ended")
        data += block
    return bytes(data)
