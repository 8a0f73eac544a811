"""A body with a content-encoding: every handler is given it unpacked, within limits, or the request is refused by name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from slotwise.worker import Answer, BatchHandler, Headers, Pipeline, Request, Settings
from slotwise.worker.inputs import packed

ZIPPED = {"content-encoding": "gzip"}


class Own(BatchHandler):
    """Somebody's own handler, which knows nothing of encodings: a row is the length of the body."""

    def load(self, model_dir: Any, settings: Settings) -> Any:
        return lambda inputs: inputs

    def example(self) -> Any:
        return np.float32(0)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [np.float32(len(body))]


class Naming(Own):
    """The same; what it answers is what it sees of the request."""

    def read(self, request: Request) -> list[Any]:
        return [np.float32(len(request.body) + sum(map(len, request.fields.get("data", ()))))]

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        return [results[0], len(request.body), "content-encoding" in request.headers], "application/json"


def ask(handler: BatchHandler, *requests: tuple[bytes, Mapping[str, str]], **fields: Any) -> list[Answer]:
    handler_settings = Settings(batch_size=8)
    handler.settings, handler.engine = handler_settings, handler.load(None, handler_settings)  # type: ignore[arg-type]
    return Pipeline(handler).answer([Request(body, Headers(headers), **fields) for body, headers in requests])


def test_an_own_handler_is_given_what_was_packed() -> None:
    body = b"x" * 5000
    answers = ask(
        Own(),
        (gzip.compress(body, mtime=0), ZIPPED),
        (body, {}),
        (gzip.compress(b"", mtime=0), {"Content-Encoding": " X-Gzip"}),
    )
    assert [(answer.status, json.loads(answer.body)) for answer in answers] == [(200, 5000.0), (200, 5000.0), (200, 0.0)]


def test_all_of_its_hooks_see_the_same_request() -> None:
    body = b"x" * 5000
    zipped = gzip.compress(body, mtime=0)
    (answer,) = ask(Naming(), (zipped, ZIPPED), fields={"data": [zipped]})
    assert json.loads(answer.body) == [10_000.0, 5000, False]


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"x", "br", 415),
        (gzip.compress(gzip.compress(b"x", mtime=0), mtime=0), "gzip, gzip", 415),
        (b"x", "gzip", 400),
        (gzip.compress(b"x", mtime=0) + b"more", "gzip", 400),
        (gzip.compress(b"x" * 1000, mtime=0)[:-9], "gzip", 400),
    ],
)
def test_what_cannot_be_unpacked_is_refused_and_costs_nobody_else(body: bytes, encoding: str, status: int) -> None:
    answers = ask(Own(), (b"xy", {}), (body, {"content-encoding": encoding}))
    assert [answer.status for answer in answers] == [200, status]
    if status == 415:
        assert b"content-encoding" in answers[1].body


def test_bombs_are_refused_by_what_they_say_before_they_are_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = list[bytes]()
    original = packed.unpacked
    monkeypatch.setattr(packed, "unpacked", lambda body: unpacked.append(body) or original(body))
    bomb = gzip.compress(bytes(packed.MAX_UNPACKED_BYTES + 1), mtime=0)
    answers = ask(Own(), (b"xy", {}), *[(bomb, ZIPPED)] * 40, (gzip.compress(b"abc", mtime=0), ZIPPED))
    assert answers[0].status == answers[-1].status == 200
    assert all(answer.status in (413, 503) for answer in answers[1:-1])
    assert len(unpacked) < 40


def test_several_parts_of_a_form_have_no_encoding_of_their_own() -> None:
    (answer,) = ask(Naming(), (b"a", ZIPPED), fields={"data": [b"a", b"b"]})
    assert answer.status == 415
