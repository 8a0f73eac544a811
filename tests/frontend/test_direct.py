"""What is for a model, past ASGI: the same head again and again, what no header may hold, and long names."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused
from slotwise.drop_in.inference_api import names_of
from slotwise.frontend.admission.large_work import LARGE_BYTES
from slotwise.frontend.http.access import LONGEST_MODEL_PATH, model_names
from slotwise.frontend.http.direct import head_of
from slotwise.frontend.http.request_head import KEPT_BYTES, _known, read_head
from slotwise.frontend.replies import ClientReply
from slotwise.host.model_versions import ModelVersions

from .conftest import Front, MakeFront
from .over_http import Connect, answer, chunked, connect, connecting, sized

__all__ = ["connect"]  # the fixture

pytestmark = pytest.mark.anyio
NO_ANSWER = "the model answered with the status %d, which no whole answer has"


@pytest.fixture
async def front(make_front: MakeFront) -> Front:
    return await make_front()


async def test_a_head_that_comes_again_is_read_once_and_each_body_is_its_own(connect: Connect, front: Front) -> None:
    connections = [await connect() for _ in range(3)]
    read = _known.cache_info().misses
    for turn in range(4):
        for i, (_, writer) in enumerate(connections):
            writer.write(sized(b"%d-%d" % (turn, i)))
        for reader, _ in connections:
            assert (await answer(reader))[0] == 200
    assert _known.cache_info().misses - read <= 1
    assert sorted(seen.body for seen in front.server.seen) == sorted(b"%d-%d" % (t, i) for t in range(4) for i in range(3))


async def test_a_long_head_is_not_kept(connect: Connect) -> None:
    reader, writer = await connect()
    kept = _known.cache_info().currsize
    head, _, body = sized(b"x").partition(b"\r\n\r\n")
    writer.write(head + b"\r\nx-long: " + b"y" * KEPT_BYTES + b"\r\n\r\n" + body)
    assert (await answer(reader))[0] == 200
    assert _known.cache_info().currsize == kept


def test_blanks_around_a_value_are_none_of_it() -> None:
    head = read_head(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type:  application/json \t\r\nX-A: a  b \r\nX-B:  \r\n\r\n")
    assert head.headers[1:] == [(b"content-type", b"application/json"), (b"x-a", b"a  b"), (b"x-b", b"")]


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb", b"a\0b", b"a\x7f"])
async def test_a_header_that_would_be_two_is_a_500_and_ends_the_connection(
    connect: Connect, front: Front, monkeypatch: pytest.MonkeyPatch, value: bytes
) -> None:
    with pytest.raises(ValueError, match="control character"):
        head_of(ClientReply(200, [(b"x-a", value)], b""), [])

    async def evil(request: BackendRequest) -> BackendAnswer:
        return BackendAnswer(200, [(b"content-type", b"text/plain"), (b"x-evil", value)], b"secret")

    monkeypatch.setattr(front.gateway.backend, "answer", evil)
    reader, writer = await connect()
    writer.write(sized(b"x"))
    got = await reader.read()
    assert got.startswith(b"HTTP/1.1 500 ")
    assert b"set-cookie" not in got
    assert b"secret" not in got
    assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == 500


def test_a_header_of_security_that_an_answer_has_itself_stands_alone() -> None:
    own = head_of(ClientReply(200, [(b"content-security-policy", b"default-src *")], b""), [])
    assert (own.count(b"content-security-policy: "), own.count(b"referrer-policy: ")) == (1, 1)


async def test_a_header_that_only_ends_as_that_of_the_connection_closes_none(
    connect: Connect, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def odd(request: BackendRequest) -> BackendAnswer:
        return BackendAnswer(200, [(b"x-connection", b"close")], b"{}")

    monkeypatch.setattr(front.gateway.backend, "answer", odd)
    reader, writer = await connect()
    writer.write(sized(b"one") + sized(b"two"))
    async with asyncio.timeout(10):
        assert [(await answer(reader))[0] for _ in range(2)] == [200, 200]


async def test_what_is_not_let_in_and_cannot_be_read_is_answered_once(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    def nobody(scope: object) -> None:
        raise Refused(401, "nobody is let in")

    async with connecting(front, checks=[nobody]) as connected:
        reader, writer = await connected()
        writer.write(chunked() + b"no size\r\n")
        got = await asyncio.wait_for(reader.read(), 10)
    assert (got.count(b"HTTP/1.1 "), got[9:12]) == (1, b"400")
    assert not [line for line in caplog.records if line.levelname == "ERROR"]


@pytest.mark.parametrize(("given", "got"), [(100, 500), (101, 500), (204, 204), (205, 205), (304, 304), (499, 400)])
async def test_the_next_answer_of_a_connection_is_the_next_requests(
    connect: Connect, front: Front, monkeypatch: pytest.MonkeyPatch, given: int, got: int
) -> None:
    """Whatever status a worker says: some have no body for any client, and one means here that nobody waits."""

    async def echo(request: BackendRequest) -> BackendAnswer:
        status = given if request.body == b"strange" else 200
        return BackendAnswer(status, [(b"content-type", b"application/json")], b'{"error": {"message": "so"}}')

    monkeypatch.setattr(front.gateway.backend, "answer", echo)
    reader, writer = await connect()
    writer.write(sized(b"strange") + sized(b"next"))
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % got)
        if got >= 400:
            assert json.loads(await reader.readuntil(b"}}"))["error"]["message"] == ("so" if got == 400 else NO_ANSWER % given)
        assert (await answer(reader))[0] == 200


@pytest.mark.parametrize("size", [1, LARGE_BYTES + 1])
async def test_who_asks_for_the_head_alone_gets_no_body(front: Front, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """TorchServe's paths take any method. A body would be the beginning of the connection's next answer."""

    async def echo(request: BackendRequest) -> BackendAnswer:
        return BackendAnswer(200, [(b"content-type", b"application/json")], json.dumps("x" * size).encode())

    monkeypatch.setattr(front.gateway.backend, "answer", echo)
    async with connecting(front, names=names_of(False, ModelVersions())) as connect:
        reader, writer = await connect()
        writer.write(b"HEAD /predictions/digits HTTP/1.1\r\nHost: x\r\n\r\n" + sized(b"next"))
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"content-length: %d\r\n" % (size + 2) in head
            assert await reader.readexactly(8) == b"HTTP/1.1"
            assert await answer(reader) == (200, "x" * size)


@pytest.mark.parametrize("path", ["/healthz", "/", "/static/page.css", "/v2/models/digits", "/openapi.json"])
async def test_the_head_of_what_can_be_read_is_there_without_its_body(connect: Connect, path: str) -> None:
    reader, writer = await connect()
    heads = []
    async with asyncio.timeout(10):
        for method in ("GET", "HEAD"):
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            if method == "GET":
                await reader.readexactly(int(heads[0].partition(b"content-length: ")[2].split(b"\r\n")[0]))
        assert heads[0].startswith(b"HTTP/1.1 200 ")
        assert heads[0] == heads[1]
        writer.write(b"HEAD /predictions/digits HTTP/1.1\r\nHost: x\r\n\r\n" + sized(b"next"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
        assert (await answer(reader))[0] == 200


@pytest.mark.parametrize(
    ("version", "more", "open_"), [("1.1", "", True), ("1.1", "Connection: close\r\n", False), ("1.0", "", False)]
)
async def test_a_connection_ends_where_its_client_wants_that(connect: Connect, version: str, more: str, open_: bool) -> None:
    for first in ("POST /predictions/digits", "GET /healthz"):
        body = "Content-Length: 1\r\n\r\nx" if first.startswith("POST") else "\r\n"
        reader, writer = await connect()
        writer.write(f"{first} HTTP/{version}\r\nHost: x\r\n{more}{body}".encode())
        status, _ = await answer(reader)
        assert status == 200
        if open_:
            writer.write(sized(b"x"))
            assert (await answer(reader))[0] == 200
        else:
            assert await asyncio.wait_for(reader.read(), 10) == b""


def test_only_what_can_be_a_models_path_is_looked_up() -> None:
    names: Any = model_names("POST", "/predictions/m/1.0")
    assert names == {"model": "m", "version": "1.0"}
    assert model_names("PUT", "/classify/m") == {"model": "m", "version": ""}
    for method, path in (
        ("GET", "/predictions/m"),
        ("POST", "/predictions/"),
        ("POST", "/predictions/" + "m" * LONGEST_MODEL_PATH),
    ):
        assert model_names(method, path) is None
