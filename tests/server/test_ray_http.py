"""How a replica reads a body: never more of it than it may have. Needs starlette, but no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: scripts/setup.sh full")

from starlette.requests import ClientDisconnect, Request

from slotwise.server.ray.http import body_within


class Chunked:
    """A request whose body comes in chunks; read: how many were taken."""

    def __init__(self, chunks: Sequence[bytes], *, whole: bool = True) -> None:
        self.messages: list[dict[str, Any]] = [{"type": "http.request", "body": c, "more_body": True} for c in chunks]
        self.messages.append({"type": "http.request", "body": b""} if whole else {"type": "http.disconnect"})
        self.read = 0

    async def receive(self) -> dict[str, Any]:
        self.read += 1
        return self.messages[self.read - 1]

    def body(self, most_bytes: int) -> bytes | None:
        return asyncio.run(body_within(Request({"type": "http", "method": "POST", "headers": []}, self.receive), most_bytes))


def test_a_body_within_the_limit_is_whole() -> None:
    assert Chunked([b"ab", b"", b"cd"]).body(4) == b"abcd"
    assert Chunked([]).body(0) == b""


def test_what_is_over_the_limit_is_not_read_to_its_end() -> None:
    endless = Chunked([b"x" * 1000] * 10_000)
    assert endless.body(2500) is None
    assert endless.read == 3


def test_a_body_that_breaks_off_is_no_body() -> None:
    with pytest.raises(ClientDisconnect):
        Chunked([b"ab"], whole=False).body(4)
