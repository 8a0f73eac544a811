"""Both servers' own protocol code reads the same messages with and without the buffer, however they arrive."""

from __future__ import annotations

import importlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.worker import buffered_reads

PACKAGES = {"torchserve": "ts", "mms": "mms"}
Sent = tuple[dict[bytes, bytes], bytes]  # one request's headers and body


@pytest.fixture(scope="module", params=PACKAGES)
def protocol(request: pytest.FixtureRequest) -> Iterator[Any]:
    module: Any = importlib.import_module(f"{PACKAGES[request.param]}.protocol.otf_message_handler")
    plain = module._retrieve_buffer, module._retrieve_request
    buffered_reads.install(request.param)
    mine = module._retrieve_request
    buffered_reads.install(request.param)
    assert module._retrieve_request is mine is not plain[1], "twice is once"
    yield module
    module._retrieve_buffer, module._retrieve_request = plain


def text(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


def message(requests: list[Sent], kind: bytes = b"application/octet-stream") -> bytes:
    """A batch as the front ends encode it."""
    made = b"I"
    for i, (headers, body) in enumerate(requests):
        made += text(f"{i:036}".encode())
        made += b"".join(text(name) + text(value) for name, value in headers.items()) + struct.pack("!i", -1)
        made += text(b"body") + text(kind) + text(body) + struct.pack("!i", -1)
    return made + struct.pack("!i", -1)


batches = st.lists(
    st.tuples(st.dictionaries(st.binary(max_size=9), st.binary(max_size=9), max_size=3), st.binary(max_size=99)),
    min_size=1,
    max_size=4,
)


@given(st.lists(batches, min_size=1, max_size=3), st.integers(1, 300), st.sampled_from([0, 1, 65_536, 200_000]))
def test_what_is_read_is_what_was_sent(protocol: Any, sent: list[list[Sent]], piece: int, longer: int) -> None:
    sent = [[(headers, body + b"x" * longer) for headers, body in batch] for batch in sent]
    server, worker = socket.socketpair()
    with server, worker:
        stream = b"".join(map(message, sent))
        step = piece if longer < 65_536 else len(stream)

        def deliver() -> None:
            for start in range(0, len(stream), step):
                server.sendall(stream[start : start + step])

        sender = threading.Thread(target=deliver)
        sender.start()
        for batch in sent:
            command, read = protocol.retrieve_msg(worker)
            assert bytes(command) == b"I"
            for (headers, body), request in zip(batch, read, strict=True):
                assert {bytes(h["name"]): bytes(h["value"]) for h in request["headers"]} == headers
                assert [bytes(parameter["value"]) for parameter in request["parameters"]] == [body]
        sender.join()


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
def test_a_server_that_goes_away_ends_the_worker_as_before(protocol: Any, cut: int) -> None:
    server, worker = socket.socketpair()
    with worker:
        server.sendall(message([({}, b"body")])[:cut])
        server.close()
        with pytest.raises((SystemExit, ValueError)):
            protocol.retrieve_msg(worker)


@pytest.mark.parametrize("kind", [b"application/json", b"text/plain"])
def test_a_body_stays_bytes_whatever_the_server_was_told(protocol: Any, kind: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("TS", "MMS"):
        monkeypatch.setenv(f"{package}_DECODE_INPUT_REQUEST", "true")
    server, worker = socket.socketpair()
    with server, worker:
        server.sendall(message([({}, b'{"no": JSON \xff')], kind))
        _, read = protocol.retrieve_msg(worker)
    assert read[0]["parameters"] == [{"name": "body", "contentType": kind.decode(), "value": b'{"no": JSON \xff'}]


def test_without_the_servers_module_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(buffered_reads.sys.modules, "mms.protocol.otf_message_handler", None)
    buffered_reads.install("mms")
