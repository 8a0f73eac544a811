"""Decide whether Slotwise's own message code may replace a server's: the version, the off switch, and a sample batch.

`fast_codec` and `mms_frames` replace functions of the server that runs the worker. They do so only where that server's
version is one that they were written for, nobody has set SLOTWISE_FAST_CODEC=0, and both codes give the same for the sample
below.
"""

from __future__ import annotations

import logging
import os
import struct
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)

SWITCH = "SLOTWISE_FAST_CODEC"
VERSIONS = {"torchserve": ("ts", "0.12.0"), "mms": ("mms", "1.1.11")}  # each server's Python package, and the version we know


@dataclass(frozen=True)
class ServerCode:
    """The server's own modules, as this worker has imported them."""

    package: Any
    protocol: Any
    service: Any
    known_version: str


def server_code(server: str) -> ServerCode | None:
    """The modules of "torchserve" or "mms"; None in a process that is no worker of that server."""
    name, known_version = VERSIONS[server]
    package, protocol, service = (sys.modules.get(name + rest) for rest in ("", ".protocol.otf_message_handler", ".service"))
    if package is None or protocol is None or service is None:
        return None
    return ServerCode(package, protocol, service, known_version)


def objection(code: ServerCode) -> str | None:
    """Why nothing may be replaced in this worker, known before anything is compared; None where nothing speaks against it."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0"
    version = getattr(code.package, "__version__", None)
    if version != code.known_version:
        observed = f"version {version}" if version else "of an unknown version"
        return f"{code.package.__name__} is {observed}, but this code is for {code.known_version}"
    rank = os.environ.get("LOCAL_RANK", "0")
    if rank != "0" and code.package.__name__ == "ts":  # TorchServe's workers of other ranks than 0 answer nothing
        return f"LOCAL_RANK={rank}"
    return None


@cache
def decline(what: str, why: str, cost: str) -> None:
    """Log, once a process, that the server's own code is used.

    what: the replacement that is not made. why: the objection. cost: what the user loses by that.
    """
    logger.warning("%s is not used: %s. %s", what, why, cost)


# The sample batch ------------------------------------------------------------------------------------------------------

MESSAGE = "Prediction success"
IDS = {i: f"0b7c3ad2-8a51-4c1e-9f6e-{i:012}" for i in range(4)}
BODIES = [b'{"label": "7"}', b'{"error": {"code": 400}}', b"", bytes(range(256)) * 300]  # the last one is longer than a piece
STATUSES = [(200, "OK"), (400, "Bad Request"), (507, None), (200, "")]
HEADERS = [
    {"content-type": "application/json", "x-batch-size": "4", "x-batch-slot": "0"},
    {"content-type": "text/plain", "x-batch-size": "4", "x-note": "größer"},
    {},
    {"x-batch-size": "4", "x-empty": ""},
]


def sample_context(code: ServerCode) -> Any:
    """A new context of the server's own class, with a status and headers in each of the sample's slots."""
    context = code.service.Context("sample", ".", {}, len(IDS), None, code.known_version)
    context.request_processor = [code.service.RequestProcessor({}) for _ in IDS]
    for i, (status, phrase) in enumerate(STATUSES):
        context.set_response_status(status, phrase, i)
        for name, value in HEADERS[i].items():
            context.set_response_header(i, name, value)
    return context


def text(data: bytes) -> bytes:
    """A field of the protocol: its length, then its bytes."""
    return struct.pack("!i", len(data)) + data


def sample_request() -> bytes:
    """A batch of requests as both front ends send it: with no, one and two parts, without headers, and with empty fields."""
    end = struct.pack("!i", -1)
    headers = text(b"content-length") + text(b"1") + text("x-gr\u00f6\u00dfe".encode()) + text(b"")
    part = text(b"body") + text(b"application/octet-stream") + text(bytes(range(256)))
    other = text(b"data") + text(b"") + text(b"")
    first = text(IDS[0].encode()) + headers + end + part + end
    second = text(IDS[1].encode()) + end + part + other + end
    third = text(IDS[2].encode()) + headers + end + end
    return b"I" + first + second + third + end
