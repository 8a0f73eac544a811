"""What a small request may cost the event loop: everybody waits meanwhile. What is quadratic does not end here.

A test of a pattern gives it so much that it would take hours to try every way of reading it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from slotwise.backends.interface import BackendAnswer, BackendRequest, Refused
from slotwise.frontend.admission.form_fields import sent_as
from slotwise.frontend.admission.limits import MemoryBudget
from slotwise.frontend.grpc.message_table import LONGEST_TEXT, text_field
from slotwise.frontend.http import http_framing, read_ahead
from slotwise.frontend.http.client_connections import ConnectionLimits, Pace
from slotwise.frontend.http.http_framing import ChunkedBody, Malformed
from slotwise.frontend.http.read_ahead import ReadAhead
from slotwise.frontend.http.request_head import read_head
from slotwise.frontend.inference_request import InferenceRequest
from slotwise.frontend.observing.seen_request import shown_path
from slotwise.worker.inputs.no_picture import refusal

from .conftest import Front, MakeFront
from .over_http import HEAD, Connect, answer, anyio_backend, chunked, connect, connecting, front, sized

__all__ = ["anyio_backend", "connect", "front"]  # the fixtures

MUCH = 2**22


def test_an_address_is_read_in_one_go() -> None:
    for line in (b"GET http://%b HTTP/1.2\r\n", b"GET http://%b", b"GET /%b HTTP/2\r\n"):
        with pytest.raises(Malformed):
            read_head(line % (b"a" * MUCH) + b"\r\nHost: x\r\n\r\n")
    assert read_head(b"GET http://x.y:8/p?q=1 HTTP/1.1\r\nHost: x\r\n\r\n").path == "/p"
    assert read_head(b"GET http://x?q HTTP/1.1\r\nHost: x\r\n\r\n").query == b"q"


@pytest.mark.parametrize("end", ["x", ";", "; a=", "; a=b x", '; a="'])
def test_so_is_what_a_form_says_of_itself(end: str) -> None:
    with pytest.raises(Refused):
        sent_as("multipart/form-data" + " " * MUCH + end, b"", 10)
    with pytest.raises(Refused):
        sent_as("multipart/form-data" + "; a=b" * (MUCH // 5) + end, b"", 10)


def test_so_is_what_is_no_picture() -> None:
    for body in (b" " * MUCH, b"A" * 64 + b" " * MUCH + b"!"):
        assert refusal(body).code == 400


def test_forms_within_a_form_are_counted_once() -> None:
    """Each part may say that it is one."""
    counted = []

    class Body(bytes):
        def count(self, *what: Any) -> int:
            counted.append(what)
            return bytes.count(self, *what)

    body = Body(b"--B\r\nContent-Type: multipart/mixed\r\n\r\nx\r\n" * 50 + b"--B--")
    sent_as("multipart/form-data; boundary=B", body, 60)
    assert len(counted) == 2
    with pytest.raises(Refused):
        sent_as("multipart/form-data; boundary=B", body + b"\n--C" * 60, 100)


def test_a_path_has_one_verb() -> None:
    assert shown_path("/v1/models/m:predict", {"m"}) == "/v1/models/m:predict"
    assert shown_path("/v1/models/m" + ":predict" * 5000, {"m"}) == "/v1/models/*:predict"


def test_of_an_id_no_more_is_read_than_is_kept() -> None:
    message = b"\x1a\x80\x80\x80\x02" + b"i" * MUCH  # field 3
    assert text_field(message, 3) == "i" * LONGEST_TEXT


def test_many_small_chunks_are_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_framing, "TOGETHER", 10)
    data, body, at, turns = bytearray(b"1\r\nx\r\n" * 20 + b"0\r\n\r\n"), ChunkedBody(), 0, list[int]()
    read = b""
    while not body.complete:
        parts, at = body.take(data, at, len(data))
        read += b"".join(parts)
        turns.append(len(parts))
    assert read == b"x" * 20
    assert max(turns) <= 4


def test_what_waits_is_counted_when_twice_as_much_may_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a head may stand in a body, as often as its client likes."""
    looks = []
    count = read_ahead.end_of_requests

    def counting(data: bytearray, most: int) -> int | None:
        looks.append(len(data))
        return count(data, most)

    monkeypatch.setattr(read_ahead, "end_of_requests", counting)
    ahead = ReadAhead()
    ahead.data += f"{HEAD}Content-Length: 99999\r\n\r\n".encode()
    for _ in range(1000):
        ahead.data += b"\r\n\r\n"
        assert not ahead.cut(16)
    assert len(looks) <= 7


def test_blank_lines_between_requests_hide_none() -> None:
    ahead, one = ReadAhead(), sized(b"picture")
    ahead.data += one + (b"\r\n" + one) * 16
    assert ahead.cut(16)
    assert ahead.data == one + (b"\r\n" + one) * 15


def test_bodies_that_come_slowly_leave_room_for_other_clients() -> None:
    memory = MemoryBudget(100)
    memory.comes("a", 0, 60)
    memory.comes("a", 60, 35)  # one alone may take all
    with pytest.raises(Refused) as refused:
        memory.comes("a", 0, 1)
    assert refused.value.status == 429
    memory.comes("b", 0, 5)
    memory.came("a", 95)
    memory.comes("a", 0, 40)
    memory.comes("a", 0, 35)
    with pytest.raises(Refused):
        memory.comes("a", 35, 1)
    memory.came("a", 75)
    memory.came("b", 5)
    assert not memory._coming


def test_who_takes_as_much_as_comes_is_not_too_slow() -> None:
    """However much waits for him."""
    limits, pace = ConnectionLimits(head_timeout_s=1.0, min_body_rate=100), Pace(0.0, 0)
    written, waiting = 0, 40_000
    for second in range(1, 20):
        written += 3000
        assert not pace.too_slow(float(second), written - waiting, limits) or second == 1


@pytest.mark.anyio
async def test_a_body_of_tiny_chunks_arrives_while_others_are_answered(connect: Connect, front: Front) -> None:
    reader, writer = await connect()
    other_reader, other = await connect()
    body = bytes(range(256)) * 80
    writer.write(chunked(*[body[i : i + 1] for i in range(len(body) + 1)]) + sized(b"next"))
    other.write(sized(b"picture"))
    assert (await answer(other_reader))[0] == 200
    for expected in (body, b"next"):
        assert (await answer(reader))[0] == 200
        assert expected in [seen.body for seen in front.server.seen]
    assert front.gateway.body_memory.now_bytes == 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "status"),
    [("/predictions/digits", 429), ("/v1/models/digits:predict", 429), ("/v2/models/digits/infer", 429), ("/no", 404)],
)
async def test_who_was_not_told_to_send_its_body_is_not_read_further(make_front: MakeFront, path: str, status: int) -> None:
    """It may send it all the same, or not: its next request could be taken for a body."""
    front = await make_front(in_flight=1, queued=0)
    front.server.gate = asyncio.Event()
    async with connecting(front) as connect:
        _, first = await connect()
        first.write(sized(b"picture"))
        while not front.server.seen:
            await asyncio.sleep(0.01)
        reader, writer = await connect()
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\nExpect: 100-continue\r\n\r\n".encode())
        received = (await asyncio.wait_for(reader.read(), 60)).lower()
        assert received.startswith(b"http/1.1 %d" % status)
        assert b"connection: close" in received
        front.server.gate.set()


@pytest.mark.anyio
async def test_an_error_with_half_a_character_is_told(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    front = await make_front()

    async def answer(request: BackendRequest) -> BackendAnswer:
        return BackendAnswer(400, [], b'{"error": {"code": 400, "message": "no \\ud800"}}')

    monkeypatch.setattr(front.gateway.backend, "answer", answer)
    found = await front.client.post("/v1/models/digits:predict", json={"instances": ["a"]})
    assert (found.status_code, found.json()) == (400, {"error": "no \ud800"})


@pytest.mark.anyio
async def test_what_is_too_large_to_be_worded_is_refused(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    front = await make_front(max_memory_bytes=2**20)

    async def answer(request: BackendRequest) -> BackendAnswer:
        return BackendAnswer(200, [(b"x-batch-slot", b"0")], b'"%b"' % (b"a" * 2**19))

    monkeypatch.setattr(front.gateway.backend, "answer", answer)
    found = await front.client.post("/v2/models/digits/generate", json={"text_input": "a"})
    assert (found.status_code, found.json().keys()) == (413, {"error"})
    assert front.gateway.body_memory.now_bytes == 0


@pytest.mark.anyio
async def test_a_copy_that_outlives_its_request_is_counted_for_itself(make_front: MakeFront) -> None:
    front = await make_front(max_memory_bytes=100)
    memory, request = front.gateway.body_memory, InferenceRequest("digits", 0.0, gateway=front.gateway)
    request.hold(b"a" * 60)
    assert not request.to_model("new").kept_apart()
    request.hold(b"a" * 40)
    copy = request.to_model("new")
    assert copy.kept_apart()
    request.release()
    assert memory.now_bytes == 40
    copy.release()
    assert memory.now_bytes == 0


async def left_of(connect: Connect, requests: Sequence[bytes], status: int) -> int:
    """The bytes that these requests leave behind, each answered with this status, before Python looks for garbage."""
    reader, writer = await connect()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for one in requests:
            writer.write(one)
            assert (await answer(reader))[0] == status
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.anyio
async def test_a_body_that_was_refused_is_gone(make_front: MakeFront) -> None:
    front, count = await make_front(max_body_bytes=2**23), 8
    head = f"{HEAD}Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {2**21}\r\n\r\n".encode()
    async with connecting(front) as connect:
        assert await left_of(connect, [head + b"a=1&" * 2**19] * count, 413) < (count - 4) * 2**21


@pytest.mark.anyio
async def test_so_are_records_that_were_not_let_in(make_front: MakeFront) -> None:
    front, count = await make_front(max_body_bytes=2**23, in_flight=1, queued=4), 6
    front.server.gate = asyncio.Event()
    body = json.dumps({"instances": [{"b64": "YWFh" * 2**18}]}).encode()
    one = f"POST /v1/models/digits:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    async with connecting(front) as connect:
        _, other = await connect()
        other.write(f"{HEAD}Content-Length: 1\r\n\r\na".encode())
        while not front.server.seen:
            await asyncio.sleep(0.01)
        front.gateway.options = replace(front.gateway.options, timeout_s=2.0)  # of which it waits for half
        assert await left_of(connect, [one] * count, 429) < (count - 4) * 2**20
        front.server.gate.set()
