"""Read an answer that comes as server-sent events, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import httpx

from slotwise.errors import SlotwiseError

EVENTS = "text/event-stream"
NO_STREAM = "ask for the whole answer, without --stream; docs/streams.md says which models and servers stream"
UNFINISHED = "what came until then is not the whole answer; the server's logs say more"
HINTS = {404: "`slotwise list` shows the models of this server", 406: NO_STREAM}


def pieces_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The pieces of an answer, each as soon as it has come.

    Raises SlotwiseError where the answer is an error, is no stream, ends with an error, or breaks off.
    """
    if response.status_code >= 400:
        raise _refused(response)
    if response.headers.get("content-type", "").partition(";")[0] != EVENTS:
        raise SlotwiseError("the server answered whole, not piece by piece", NO_STREAM)
    count = 0
    try:
        for kind, data in events(response.iter_bytes()):
            if kind == "end":
                return
            if kind == "error":
                raise SlotwiseError(f"the stream ended after piece {count}: {_message(data)}", UNFINISHED)
            count += 1
            yield data
    except (httpx.HTTPError, ValueError) as error:
        raise SlotwiseError(f"the stream broke off after piece {count}: {error}", UNFINISHED) from error
    raise SlotwiseError(f"the stream broke off after piece {count}", UNFINISHED)


def events(chunks: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    """Kind and data of each event that is whole. A piece has the kind "message". Raises ValueError where data is no JSON."""
    rest, kind, data = b"", "message", list[str]()
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.rstrip(b"\r").decode().partition(":")
            if name == "event":
                kind = value.removeprefix(" ")
            elif name == "data":
                data.append(value.removeprefix(" "))
            elif not line.rstrip(b"\r"):
                if data:
                    yield kind, json.loads("\n".join(data))
                kind, data = "message", []


def _refused(response: httpx.Response) -> SlotwiseError:
    try:
        message = _message(response.json())
    except ValueError:
        message = response.text.strip() or response.reason_phrase
    return SlotwiseError(f"HTTP {response.status_code}: {message}", HINTS.get(response.status_code, ""))


def _message(data: Any) -> str:
    """What an error says, in the one shape that errors have, or in TorchServe's."""
    error = data.get("error", data) if isinstance(data, dict) else data
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
