"""An answer that comes as events, read by a client: however it is cut, its errors, and what ends too early."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from typer.testing import CliRunner

from slotwise.cli import build_app
from slotwise.client.stream_pieces import events, pieces_of
from slotwise.errors import SlotwiseError

HEADERS = {"content-type": "text/event-stream; charset=utf-8"}
WHOLE = (
    ': alive\n\ndata: {"text": "a\u2028b"}\r\n\r\ndata: {"text":\ndata: "\\r"}\n\nevent: end\ndata: {"pieces": 2}\n\n'.encode()
)
PIECES = [{"text": "a\u2028b"}, {"text": "\r"}]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_pieces_however_they_are_cut(size: int) -> None:
    chunks = [WHOLE[i : i + size] for i in range(0, len(WHOLE), size)]
    assert list(events(chunks)) == [*(("message", piece) for piece in PIECES), ("end", {"pieces": 2})]
    assert list(pieces_of(httpx.Response(200, headers=HEADERS, content=iter(chunks)))) == PIECES


def broken(chunks: list[bytes]) -> Iterator[bytes]:
    yield from chunks
    raise httpx.RemoteProtocolError("it closed the connection")


@pytest.mark.parametrize(
    ("response", "what"),
    [
        (httpx.Response(406, json={"error": {"code": 406, "message": "whole only"}}), "HTTP 406: whole only"),
        (httpx.Response(404, json={"code": 404, "type": "x", "message": "no model"}), "HTTP 404: no model"),
        (httpx.Response(502, text="a proxy"), "HTTP 502: a proxy"),
        (httpx.Response(200, text="7"), "the server answered whole, not piece by piece"),
    ],
)
def test_what_is_no_stream(response: httpx.Response, what: str) -> None:
    with pytest.raises(SlotwiseError) as error:
        list(pieces_of(response))
    assert error.value.message == what


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (b'event: error\ndata: {"error": {"code": 500, "message": "failed"}}\n\n', "the stream ended after piece 1: failed"),
        (b"", "the stream broke off after piece 1"),
        (b"event: end\ndata: {", "the stream broke off after piece 1"),
        (b"data: {\n\n", "the stream broke off after piece 1: Expecting"),
    ],
)
def test_an_end_that_is_none(more: bytes, what: str) -> None:
    pieces = pieces_of(httpx.Response(200, headers=HEADERS, content=iter([b'data: {"text": "a"}\n\n', more])))
    assert next(pieces) == {"text": "a"}
    with pytest.raises(SlotwiseError) as error:
        next(pieces)
    assert error.value.message.startswith(what)


def test_the_command_takes_one_file() -> None:
    assert CliRunner().invoke(build_app(), ["predict", "m", "a", "b", "--stream"]).exit_code == 2


def test_a_connection_that_breaks() -> None:
    with pytest.raises(SlotwiseError, match="broke off after piece 1: it closed the connection"):
        list(pieces_of(httpx.Response(200, headers=HEADERS, content=broken([b'data: {"text": "a"}\n\n']))))
