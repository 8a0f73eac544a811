"""Make what leaves the gateway: error JSON with a request id, security headers, the server's headers worth keeping."""

from __future__ import annotations

import json
import random
import re
import secrets
from collections.abc import Callable, Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

from slotwise.backends.exchange import RawHeaders, Refused
from slotwise.client.http_exchange import REQUEST_ID

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY: RawHeaders = [
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
]
ANSWER: RawHeaders = [(b"cache-control", b"no-store")]
LONGEST_ERROR_BYTES = 64 * 1024
CRASH = "the gateway failed on this request"
SEQUENCE = b"ts_request_sequence_"  # TorchServe's headers of stateful inference: _id, _start, _end
JSON_TYPE = (b"content-type", b"application/json")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch
is_header_name = re.compile(rb"[a-z0-9!#$%&'*+.^_`|~-]+").fullmatch  # in lower case
KEPT_NAME = 64  # of a header: longer ones are looked at each time
_PASSED_ON = {b"content-type", b"accept", b"content-encoding"}
OF_A_BODY = (b"content-type", b"content-encoding")  # headers that say what it is
_DROPPED = {b"x-request-id", REQUEST_ID.encode(), b"x-content-type-options", b"x-slotwise-sent"}


_random = random.Random(secrets.randbits(128))  # one call of the system for each request is dear


class ClientReply(NamedTuple):
    """What a client gets."""

    status: int
    headers: RawHeaders
    body: bytes


def new_id() -> str:
    """An id for a request that came without one. It tells requests apart, and is no secret."""
    return f"{_random.getrandbits(64):016x}"


def request_id(header: str | None) -> str:
    """The client's x-request-id where it is harmless, else an empty string."""
    return header if header and _REQUEST_ID(header) else ""


ErrorShape = Callable[[int, str, str], bytes]
ErrorOf = Callable[[int, bytes, str], bytes | None]  # status, body and request id to a body in our shape; None: it stays
HeaderFilter = Callable[[bytes], str]  # a header's name as it goes on, "" where it does not


def own_shape(status: int, message: str, identity: str) -> bytes:
    """`{"error": {"code", "message", "request_id"}}`."""
    return json.dumps({"error": {"code": status, "message": message, "request_id": identity}}).encode()


_shape: ErrorShape = own_shape


def error_body(status: int, message: str, identity: str) -> bytes:
    """The body of an error, in the one shape that errors have in this process."""
    return _shape(status, message, identity)


def shape_errors(shape: ErrorShape) -> None:
    """Give the errors of this process another shape, before it serves. shape: status, message and request id to a body."""
    global _shape
    _shape = shape


def refusal(refused: Refused, identity: str) -> ClientReply:
    """The answer to a request that is read no further: its connection is closed."""
    body = error_body(refused.status, refused.message, identity)
    named = (b"x-request-id", identity.encode())
    closed = [] if refused.close else [(b"connection", b"close")]
    length = (b"content-length", b"%d" % len(body))
    return ClientReply(refused.status, [JSON_TYPE, named, length, *ANSWER, *closed, *refused.headers()], body)


def phrase(status: int) -> str:
    """The status's usual words."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def error_from_server(status: int, body: bytes, identity: str) -> bytes:
    """A server's error in our shape."""
    return error_body(status, message_of(status, body), identity)


def message_of(status: int, body: bytes) -> str:
    """What an error says: a slot's `{"error": {...}}`, TorchServe's `{"code", "type", "message"}`, or text."""
    message = ""
    if len(body) > LONGEST_ERROR_BYTES:  # no error that anybody meant
        return phrase(status)
    try:
        content = json.loads(body)
        inner = content.get("error", content) if isinstance(content, dict) else {}
        message = str(inner.get("message", "")) if isinstance(inner, dict) else ""
    except ValueError:
        message = body[:500].decode("utf-8", "replace").strip() if body[:1] != b"<" else ""
    return message or phrase(status)


def passed_on(raw: Iterable[tuple[bytes, bytes]], to_client: HeaderFilter) -> RawHeaders:
    """The server's headers that the client gets, names in lower case."""
    return [(kept.encode("latin-1"), value) for name, value in raw if (kept := to_client(name))]


def to_model(name: bytes) -> str:
    """The name of a header that the model gets; "" where it does not: its content type, x- headers, a sequence's."""
    return _known_to_model(name) if len(name) <= KEPT_NAME else _to_model(name)


def _to_model(name: bytes) -> str:
    kept = name in _PASSED_ON or (name[:2] == b"x-" and name != b"x-api-key") or name.startswith(SEQUENCE)
    return name.decode("latin-1") if kept else ""


_known_to_model = lru_cache(maxsize=256)(_to_model)


@lru_cache(maxsize=256)
def to_client(name: bytes) -> str:
    """The name of an answer's header, in lower case, that its client gets; "" where it does not: as `to_model`."""
    low = name.lower()
    if not is_header_name(low):
        return ""
    kept = (low[:2] == b"x-" and low not in _DROPPED) or low in OF_A_BODY or low.startswith(SEQUENCE)
    return low.decode("latin-1") if kept else ""
