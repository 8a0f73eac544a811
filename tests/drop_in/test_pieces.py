"""A handler that streams on TorchServe as it is, on ours and on the real one: the same pieces, to each client its own."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slotwise.archive.guarding.guarded import guard
from slotwise.archive.local_model import LocalModel
from tests.drop_in.stores import archive
from tests.support.deployments import OURS, TIMEOUT_S, TORCHSERVE, Deployment, deployed
from tests.support.torchserve_client import TorchServeClient

OPTIONS = ("--ncs", "--models", "pieces.mar")
LINES = ("default_workers_per_model=1",)
END_OF_HEAD = b"\r\n\r\n"


@pytest.fixture(scope="module")
def deployment(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    place = tmp_path_factory.mktemp("p")
    archive(place / "store", "pieces", "pieces")
    with deployed(program, place / "d", place / "store", LINES, OPTIONS) as one:
        one.wait_ready("pieces")
        yield one


def asked(deployment: Deployment, body: bytes, *headers: str, model: str = "pieces", version: str = "1.1") -> socket.socket:
    """A connection that has asked."""
    named = [f"{name}: {value}" for name, value in deployment.headers("inference").items()]
    lines = [f"POST /predictions/{model} HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *named, *headers]
    connection = socket.create_connection(("127.0.0.1", deployment.ports.inference), timeout=TIMEOUT_S)
    connection.sendall("\r\n".join(lines).encode() + END_OF_HEAD + body)
    return connection


def read(connection: socket.socket, data: bytes = b"") -> tuple[bytes, list[bytes], bool]:
    """The head, the chunks, and whether the last one came. data: what was read before."""
    try:
        while not data.endswith(b"\r\n0\r\n\r\n") and (more := connection.recv(1 << 16)):
            data += more
    except ConnectionError:
        pass
    finally:
        connection.close()
    head, _, rest = data.partition(END_OF_HEAD)
    chunks = []
    while match := re.match(rb"([0-9a-f]+)\r\n", rest):
        size = int(match[1], 16)
        if not size:
            return head, chunks, True
        chunks.append(rest[match.end() : match.end() + size])
        rest = rest[match.end() + size + 2 :]
    return head, chunks, False


SAID = {
    b"type a b c": [b"a ", b"b ", b"c ", b"end"],
    b"json a b": [b'{\n  "word": "a"\n}', b'{\n  "word": "b"\n}', b"end"],
    b"bytes a b": [b"\xff\x00\n", b"\xff\x00\n", b"end"],
}


@pytest.mark.parametrize("body", SAID, ids=bytes.decode)
def test_each_piece_is_a_chunk(deployment: Deployment, body: bytes) -> None:
    head, chunks, whole = read(asked(deployment, body))
    assert head.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding: chunked" in head
    assert (chunks, whole) == (SAID[body], True)
    named = {line.partition(b": ")[0].lower(): line.partition(b": ")[2] for line in head.split(b"\r\n")}
    types = (b"text/plain; charset=utf-8", b"pieces") if body.startswith(b"type") else (None, None)
    assert (named.get(b"content-type"), named.get(b"x-made-by")) == types


def test_an_answer_without_pieces_is_an_ordinary_one(deployment: Deployment) -> None:
    answer = deployment.asked(
        "POST", f"{deployment.inference}/predictions/pieces", headers=deployment.headers("inference"), content=b"plain"
    )
    assert (answer.status_code, answer.text, answer.headers["content-length"]) == (200, "end", "3")


def test_an_error_in_the_middle_is_no_end_and_one_before_has_its_status(deployment: Deployment) -> None:
    head, chunks, whole = read(asked(deployment, b"x a fail b"))
    assert (head[:12], chunks, whole) == (b"HTTP/1.1 200", [b"a "], False)
    answer = deployment.asked(
        "POST", f"{deployment.inference}/predictions/pieces", headers=deployment.headers("inference"), content=b"x fail"
    )
    assert answer.status_code in (500, 503)
    assert answer.json()["type"] == "InternalServerException"
    assert read(asked(deployment, b"x a"))[1] == [b"a ", b"end"]


@pytest.mark.parametrize("body", SAID, ids=bytes.decode)
def test_by_grpc_each_piece_is_a_message(client: TorchServeClient, body: bytes) -> None:
    got = client.ask("StreamPredictions", model_name="pieces", input={"data": body})
    assert (got.code, list(got.content)) == ("OK", SAID[body])


def test_by_grpc_an_error_in_the_middle_ends_the_call(client: TorchServeClient) -> None:
    got = client.ask("StreamPredictions", model_name="pieces", input={"data": b"x a fail b"})
    assert got.code in ("INTERNAL", "UNAVAILABLE")
    assert got.content[:1] == (b"a ",)


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream"])
def test_a_handler_that_writes_events_itself_is_heard_as_it_is(deployment: Deployment, accept: str) -> None:
    head, chunks, whole = read(asked(deployment, b"events a b", f"Accept: {accept}", "Last-Event-ID: 1"))
    assert b"content-type: text/event-stream" in head.lower()
    assert (chunks, whole) == ([b"a ", b"b ", b"end"], True)
    assert read(asked(deployment, b"events a fail", f"Accept: {accept}"))[1:] == ([b"a "], False)


def test_many_clients_get_their_own_pieces(deployment: Deployment) -> None:
    def pieces(i: int) -> list[bytes]:
        return read(asked(deployment, b"x " + b" ".join(b"%d.%d" % (i, k) for k in range(i % 5))))[1]

    with ThreadPoolExecutor(8) as clients:
        got = list(clients.map(pieces, [i for i in range(40) if i % 5]))
    assert got == [[*(b"%d.%d " % (i, k) for k in range(i % 5)), b"end"] for i in range(40) if i % 5]


@pytest.mark.parametrize("program", [OURS], indirect=True, ids=["ours"])
class TestOursAlone:
    """What only ours promises."""

    def test_who_asks_for_events_gets_events(self, deployment: Deployment) -> None:
        head, chunks, whole = read(asked(deployment, b"x a fail", "Accept: text/event-stream"))
        events = b"".join(chunks)
        assert (b"content-type: text/event-stream" in head, whole) == (True, True)
        assert events.startswith(b'data: {"text": "a "}\n\nevent: error\ndata: ')
        head, chunks, whole = read(asked(deployment, b"plain", "Accept: text/event-stream"))
        assert b"".join(chunks) == b'data: {"text": "end"}\n\nevent: end\ndata: {"pieces": 1}\n\n'

    @pytest.mark.parametrize("body", [b"x a fail", b"x a wait fail"], ids=bytes.decode)
    def test_in_http_1_0_an_error_in_the_middle_is_no_end_either(self, deployment: Deployment, body: bytes) -> None:
        """There the body ends with the connection, and nginx asks its upstreams so by default."""
        with asked(deployment, b"x a", version="1.0") as connection:
            assert connection.makefile("rb").read().endswith(b"\r\n\r\na end")
        with asked(deployment, body, version="1.0") as connection, pytest.raises(ConnectionResetError):
            connection.makefile("rb").read()

    def test_whole_it_is_all_pieces_in_one(self, client: TorchServeClient) -> None:
        assert client.predict("pieces", b"type a b").content == (b"a b end",)

    def test_a_worker_that_dies_ends_no_stream(self, deployment: Deployment) -> None:
        with asked(deployment, b"x a " + b"wait " * 8) as connection:
            begun = connection.recv(1 << 16)
            (worker,) = deployment.call("GET", "/models/pieces").json()[0]["workers"]
            os.kill(worker["pid"], signal.SIGKILL)
            rest = read(connection, begun)
        assert rest[1:] == ([b"a ", *[b"wait "] * 8, b"end"], True)

    def test_a_client_that_goes_leaves_the_worker_as_it_was(self, deployment: Deployment) -> None:
        """There is one worker. The handler runs to its end there, as on TorchServe."""
        with asked(deployment, b"x " + b"wait " * 8) as connection:
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert read(asked(deployment, b"x a"))[1] == [b"a ", b"end"]
        workers = deployment.call("GET", "/models/pieces").json()[0]["workers"]
        assert [one["status"] for one in workers] == ["READY"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("g")
    archive(place / "store", "pieces", "pieces")
    return guard(place / "store" / "pieces.mar", place / "store" / "safe.mar", name="safe")


def test_where_nobody_streams_a_guarded_one_answers_whole(guarded: Path) -> None:
    with LocalModel(guarded, batch_size=4) as model:
        answers = model.answer([(b"x a b", {}), (b"x a fail b", {}), (b"plain", {})])
    assert [answer.status for answer in answers] == [200, 500, 200]
    assert [answers[0].body, answers[2].body] == [b"a b end", b"end"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_also_on_torchserve(guarded: Path, tmp_path: Path) -> None:
    with deployed(TORCHSERVE, tmp_path / "d", guarded.parent, LINES, ("--ncs", "--models", "safe.mar")) as deployment:
        deployment.wait_ready("safe")
        address, headers = f"{deployment.inference}/predictions/safe", deployment.headers("inference")
        answers = [deployment.asked("POST", address, headers=headers, content=body) for body in (b"x a b", b"x a fail")]
        assert [(answers[0].status_code, answers[0].text), answers[1].status_code] == [(200, "a b end"), 500]
