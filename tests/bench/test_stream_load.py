"""`slotwise bench --stream`: what counts as a stream, and when its pieces came."""

from __future__ import annotations

import asyncio
import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.bench.stream_load import StreamSample, measure, read, summary

EVENTS = [(b"Content-Type", b"text/event-stream; charset=utf-8")]
BODY = b'data: {"text": "a"}\n\n: alive\n\ndata: {"text": "b"}\n\nevent: end\ndata: {"pieces": 2}\n\n'


def test_a_piece_came_when_its_last_byte_did() -> None:
    first = BODY.index(b": alive")
    assert read(200, EVENTS, BODY, [(first - 1, 1.0), (first, 2.0), (first + 12, 3.0), (len(BODY), 4.0)]) == ("200", [2.0, 4.0])
    assert read(200, EVENTS, BODY, [(len(BODY), 1.0)]) == ("200", [1.0, 1.0])


@pytest.mark.parametrize(
    ("code", "headers", "body", "status"),
    [
        (406, EVENTS, b"{}", "406"),
        (200, [], b"whole", "whole"),
        (200, EVENTS, b"", "broken"),
        (200, EVENTS, b'data: {"text": "a"}\n\n', "broken"),
        (200, EVENTS, BODY[:-1], "broken"),
        (200, EVENTS, b'data: {"text": "a"}\n\nevent: error\ndata: {}\n\n', "broken"),
    ],
)
def test_what_is_no_stream(code: int, headers: list[tuple[bytes, bytes]], body: bytes, status: str) -> None:
    assert read(code, headers, body, [(len(body), 1.0)])[0] == status


def test_the_numbers() -> None:
    samples = [
        StreamSample("200", 0.2, (0.3, 0.4), 0.5),  # within the warm-up
        StreamSample("200", 1.0, (1.1, 1.3, 1.6), 2.0),
        StreamSample("200", 1.0, (1.2, 3.0), 3.0),
        StreamSample("broken", 1.5, (1.6,), 1.7),
        StreamSample("429", 1.5, ended_s=1.6),
    ]
    result = summary(samples, LoadPlan(clients=2, seconds=2.0, warm_up_s=1.0))
    assert (result.streams, result.pieces, result.errors) == (2, 5, {"broken": 1, "429": 1})
    assert (result.seconds, result.streams_s, result.pieces_s) == (2.0, 1.0, 2.5)
    times = (result.first_p50_ms, result.first_p99_ms, result.between_p50_ms, result.between_p99_ms)
    assert times == pytest.approx((100.0, 200.0, 300.0, 1800.0))


@given(st.floats(0.05, 30.0), st.floats(0.0, 5.0), st.floats(0.1, 10.0), st.integers(1, 8))
def test_the_rates_are_those_of_the_server_however_long_a_stream_is(
    stream_s: float, warm_up_s: float, seconds: float, clients: int
) -> None:
    """Each client asks again at once, and a stream has its pieces at even distances: so many streams a second there are."""
    samples = [
        StreamSample("200", at := n * stream_s, tuple(at + stream_s * (k + 1) / 10 for k in range(10)), at + stream_s)
        for n in range(math.ceil((warm_up_s + seconds) / stream_s))
    ] * clients
    result = summary(samples, LoadPlan(clients=clients, seconds=seconds, warm_up_s=warm_up_s))
    assert result.streams_s == pytest.approx(clients / stream_s)
    assert abs(result.pieces_s * seconds - 10 * seconds * clients / stream_s) <= 1.01 * clients  # a piece a client

    last = [one for one in samples if one.began_s >= warm_up_s][: 4 * clients]
    if last:
        found = summary(last, LoadPlan(clients=clients, requests=len(last), warm_up_s=warm_up_s))
        assert found.streams_s * found.seconds == pytest.approx(len(last))


def test_a_load_counts_whole_streams_and_goes_on_after_others() -> None:
    answers = deque(
        [
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY),
            b"HTTP/1.1 503 Not now\r\ncontent-length: 2\r\n\r\n{}",
            b"",
        ]
    )
    asked: list[bytes] = []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            asked.append(head)
            await reader.readexactly(1)
            answer = answers[0]
            answers.rotate(-1)
            if not answer:
                break
            writer.write(answer)
        writer.close()

    async def serve_and_load() -> object:
        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        target, plan = Target(f"http://127.0.0.1:{port}/predictions/x", {}), LoadPlan(1, None, 6, 0.0, timeout_s=60.0)
        async with server:
            return await asyncio.to_thread(measure, target, [RequestBody(b"x", "text/plain")], plan)

    result = asyncio.run(serve_and_load())
    assert (result.streams, result.pieces, result.errors) == (2, 4, {"503": 2, "connection": 2})  # type: ignore[attr-defined]
    assert all(b"\r\naccept: text/event-stream\r\n" in head for head in asked)


def test_streams_that_fail_take_time_too() -> None:
    good, failed = [StreamSample("200", 0.0, (0.05, 0.1))] * 8, [StreamSample("timeout", 0.1)] * 8
    assert summary([*good, *failed], LoadPlan(clients=8, seconds=10.0, warm_up_s=0.0)).streams_s == 0.8
    ended = [StreamSample("timeout", 0.1, ended_s=4.0)]
    assert summary([*good, *ended], LoadPlan(clients=8, requests=9, warm_up_s=0.0)).streams_s == 2.0
    assert summary(failed, LoadPlan(clients=8)).as_json()["first_p50_ms"] is None
