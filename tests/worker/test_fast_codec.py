"""Both servers' own protocol code reads and writes the same messages with and without Slotwise's, however they arrive."""

from __future__ import annotations

import importlib
import socket
import struct
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.worker.hosts.java import fast_codec
from slotwise.worker.hosts.java.codec_check import SWITCH, VERSIONS, text

MODULES = ("protocol.otf_message_handler", "service", "context")
Sent = tuple[dict[bytes, bytes], bytes]  # one request's headers and body


@pytest.fixture(scope="module", params=VERSIONS)
def patched(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server's modules, patched: its protocol, its context, and how answers are written: plain and ours."""
    modules: list[Any] = [importlib.import_module(f"{VERSIONS[request.param][0]}.{name}") for name in MODULES]
    protocol, service, context = modules
    reading, writing = (protocol._retrieve_buffer, protocol._retrieve_request), service.create_predict_response
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SWITCH, raising=False)
        assert fast_codec.install(request.param)
        ours = protocol._retrieve_request, service.create_predict_response
        assert fast_codec.install(request.param)
    assert (protocol._retrieve_request, service.create_predict_response) == ours, "twice is once"
    assert ours != (reading[1], writing)
    yield SimpleNamespace(retrieve_msg=protocol.retrieve_msg, plain=writing, ours=ours[1], context=context)
    protocol._retrieve_buffer, protocol._retrieve_request = reading
    service.create_predict_response = writing


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
def test_what_is_read_is_what_was_sent(patched: Any, sent: list[list[Sent]], piece: int, longer: int) -> None:
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
            command, read = patched.retrieve_msg(worker)
            assert bytes(command) == b"I"
            for (headers, body), request in zip(batch, read, strict=True):
                assert {bytes(h["name"]): bytes(h["value"]) for h in request["headers"]} == headers
                assert [bytes(parameter["value"]) for parameter in request["parameters"]] == [body]
        sender.join()


WITHIN_A_WORD = message([({}, b"body")]).index(text(b"application/octet-stream")) + 10


@pytest.mark.parametrize("cut", [0, 1, 40, WITHIN_A_WORD, -1])
def test_a_server_that_goes_away_ends_the_worker_as_before(patched: Any, cut: int) -> None:
    server, worker = socket.socketpair()
    with worker:
        server.sendall(message([({}, b"body")])[:cut])
        server.close()
        with pytest.raises((SystemExit, ValueError)):
            patched.retrieve_msg(worker)


@pytest.mark.parametrize("kind", [b"application/json", b"text/plain"])
def test_a_body_stays_bytes_whatever_the_server_was_told(patched: Any, kind: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("TS", "MMS"):
        monkeypatch.setenv(f"{package}_DECODE_INPUT_REQUEST", "true")
    server, worker = socket.socketpair()
    with server, worker:
        server.sendall(message([({}, b'{"no": JSON \xff')], kind))
        _, read = patched.retrieve_msg(worker)
    assert read[0]["parameters"] == [{"name": "body", "contentType": kind.decode(), "value": b'{"no": JSON \xff'}]


names = st.text(st.characters(max_codepoint=127), max_size=20)
headers = st.dictionaries(names.filter(lambda name: name != "content-type"), st.text(max_size=9))
answers = st.lists(
    st.tuples(st.sampled_from([200, 400, 507]), names, names, headers, st.binary(max_size=99)),
    min_size=1,
    max_size=4,
)


@given(answers)
def test_what_is_written_is_what_the_server_would_have_written(patched: Any, slots: list[Any]) -> None:
    context = patched.context.Context("m", ".", {}, len(slots), None, "1")
    context.request_processor = [patched.context.RequestProcessor({}) for _ in slots]
    for i, (code, phrase, kind, headers, _) in enumerate(slots):
        context.set_response_status(code, phrase, i)
        for name, value in headers.items():
            context.set_response_header(i, name, value)
        if kind:
            context.set_response_content_type(i, kind)
    bodies, ids = [body for *_, body in slots], {i: f"{i:036}" for i in range(len(slots))}
    assert patched.ours(bodies, ids, "fine", 200, context=context) == patched.plain(bodies, ids, "fine", 200, context=context)


@pytest.mark.parametrize("bodies", [None, [{"no": "bytes"}, "text"]])
def test_what_no_handler_of_ours_returns_is_left_to_the_server(patched: Any, bodies: Any) -> None:
    ids, code = {0: "first", 1: "second"}, 200 if bodies else 503
    context = patched.context.Context("m", ".", {}, 2, None, "1") if bodies else None
    if context:
        context.request_processor = [patched.context.RequestProcessor({}) for _ in ids]
    assert patched.ours(bodies, ids, "said", code, context=context) == patched.plain(bodies, ids, "said", code, context=context)


# What is written by the server's own code -----------------------------------------------------------------------------


def context_of(module: Any, count: int = 2) -> Any:
    context = module.Context("m", ".", {}, count, None, "1")
    context.request_processor = [module.RequestProcessor({}) for _ in range(count)]
    return context


class Connection:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self.sent.append(bytes(data))


@pytest.fixture
def torchserve(patched: Any) -> Any:
    if not patched.context.__name__.startswith("ts."):
        pytest.skip("MMS does not stream")
    return patched


@pytest.mark.parametrize("module", ["ts.handler_utils.utils", "ts.protocol.otf_message_handler"])
def test_a_streamed_answer_is_the_servers_own_to_its_end(torchserve: Any, module: str) -> None:
    send = importlib.import_module(module).send_intermediate_predict_response
    ids, results = {0: "first", 1: "second"}, []
    for write in (torchserve.ours, torchserve.plain):
        context = context_of(torchserve.context)
        context.cl_socket = Connection()
        send([b"1", b"2"], ids, "Intermediate Prediction success", 200, context)
        last = write([b"3", b"4"], ids, "Prediction success", 200, context=context)
        assert context.get_response_headers(1)["ts_stream_next"] == "false", "or the front end waits for more"
        results.append((context.cl_socket.sent, bytes(last)))
    assert results[0] == results[1]


def test_stopping_criteria_are_asked(torchserve: Any) -> None:
    ids, results = {0: "first", 1: "second"}, []
    for write in (torchserve.ours, torchserve.plain):
        context = context_of(torchserve.context)
        context.stopping_criteria = [lambda body: body == b"end", lambda body: body == b"end"]
        made = write([b"more", b"end"], ids, "Prediction success", 200, context=context)
        results.append((bytes(made), [context.get_response_headers(i)["ts_stream_next"] for i in ids]))
    assert results[0] == results[1]
    assert results[0][1] == ["true", "false"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda context: context.set_response_header(1, "x-number", 5),
        lambda context: context.set_response_header(1, "content-type", None),
        lambda context: context.set_response_status("200", "OK", 1),
        lambda context: context.set_response_status(None, None, 1),
        lambda context: context.set_response_status(200, ["OK"], 1),
        lambda context: context.set_response_header(1, "x-lone", "\ud800"),
    ],
)
def test_an_odd_answer_becomes_what_the_server_makes_of_it(patched: Any, spoil: Any) -> None:
    results = []
    for write in (patched.ours, patched.plain):
        context = context_of(patched.context)
        spoil(context)
        try:
            results.append(bytes(write([b"1", b"2"], {0: "first", 1: "second"}, "fine", 200, context=context)))
        except Exception as error:
            results.append(type(error))  # type: ignore[arg-type]
    assert results[0] == results[1]


def test_a_phrase_that_is_not_ascii_gets_its_length_in_bytes(patched: Any) -> None:
    context = context_of(patched.context, 1)
    context.set_response_status(200, "schön", 0)
    made = patched.ours([b"1"], {0: "first"}, "fine", 200, context=context)
    assert text("schön".encode()) in made
