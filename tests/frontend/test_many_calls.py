"""gRPC's calls are taken as they come, however long a turn of the event loop is."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import grpc
import pytest

from slotwise.frontend.grpc import many_calls
from slotwise.frontend.grpc.many_calls import ManyCalls

pytestmark = pytest.mark.anyio
TURN_S = 0.005
CALLS = 300  # gRPC's poller stops in its own socket, of some 280 bytes, where nobody empties it
IN_TURNS = 500  # of some 50; grpcio alone takes five turns a call


async def count(messages: Any, context: Any) -> bytes:
    return str(len([one async for one in messages])).encode()


def ask(port: int, calls: int, answers: list[Any], sent: threading.Event) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary("/test.Service/Count")
        asked = [method.future(b"x") for _ in range(calls)]
        sent.set()
        answers += [one.result() if one.exception() is None else one.code() for one in asked]


async def answered(calls: int) -> tuple[list[Any], int]:
    """What so many calls at once get, and how many long turns of the loop it took."""
    handlers = {"Count": grpc.stream_unary_rpc_method_handler(count)}
    it = ManyCalls("test.Service", handlers, [])
    port = it.server.add_insecure_port("127.0.0.1:0")
    await it.start()
    answers: list[Any] = []
    sent, turns = threading.Event(), 0
    client = threading.Thread(target=ask, args=(port, calls, answers, sent))
    client.start()
    sent.wait()
    while client.is_alive():
        time.sleep(TURN_S)
        await asyncio.sleep(0)
        turns += 1
    await it.server.stop(None)
    await asyncio.sleep(0.05)
    assert not it._answering, "nothing of a server that has stopped goes on"
    return answers, turns


async def test_many_calls_at_once_take_few_turns_of_the_loop() -> None:
    answers, turns = await answered(CALLS)
    assert answers == [b"1"] * CALLS
    assert turns < IN_TURNS


async def test_a_grpcio_that_is_not_known_goes_its_own_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_calls, "_is_as_known", lambda: False)
    answers, _ = await answered(20)
    assert answers == [b"1"] * 20


def test_the_grpcio_that_is_installed_is_known() -> None:
    assert many_calls._is_as_known()
