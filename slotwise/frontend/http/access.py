"""Around all routes: security headers on the way out and, where they are asked for, a certificate and a key on the way in."""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

from slotwise.backends.interface import Refused
from slotwise.frontend import replies
from slotwise.frontend.admission.keys import KeyFile
from slotwise.frontend.admission.limits import Receive
from slotwise.frontend.forward import Forward, Send
from slotwise.frontend.inference_request import CERTIFICATE, Scope
from slotwise.frontend.observing.observer import SEEN, Observer
from slotwise.frontend.observing.seen_request import shown_path
from slotwise.frontend.replies import ClientReply

log = logging.getLogger("slotwise.gateway")

Check = Callable[[Scope], None]  # raises Refused where a request does not get in
Took = Callable[[Scope, int, float], None]
Names = Callable[[str, str], Mapping[str, str] | None]  # what method and path name, where they are for a model

LONGEST_MODEL_PATH = 400  # names have 128 characters at most; what is longer is not kept
_MODEL_PATH = re.compile(r"/predictions/([^/]+)(?:/([^/]+))?|/classify/([^/]+)").fullmatch

PROBES, PROBES_BELOW = {"/healthz", "/ready", "/ping"}, ("/ready/", "/v2/health/")
OPEN = PROBES | {"/", "/index.html"}  # the page holds no secret, and asks for a key
OPEN_BELOW = ("/static/", *PROBES_BELOW)
PUBLIC = {"metrics": ("/metrics", "/metrics/server"), "status": ("/status",), "docs": ("/docs", "/openapi.json")}


class Entrance:
    """What stands around all routes: checks on the way in, and security headers on every answer. Static files may be cached.

    forward: answers what is for a model, past the app's dozen layers, which lead there, too. names: which requests those are.
    took(scope, status, began): told of every answer; `began` is on time.monotonic's clock. observer: sees every request.
    """

    observer: Observer | None = None

    def __init__(self, app: Any, forward: Forward, checks: Iterable[Check] = ()) -> None:
        self.app, self.forward, self.checks = app, forward, list(checks)
        self.names: Names = model_names
        self.took: Took | None = None

    def check(self, scope: Scope) -> None:
        """Raise Refused where a request does not get in. Its key stands in the scope from here on."""
        for check in self.checks:
            check(scope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif self.observer is None:
            await self._answer(scope, receive, send)
        else:
            await self._observed(self.observer, scope, receive, send)

    async def _observed(self, observer: Observer, scope: Scope, receive: Receive, send: Send) -> None:
        status = bytes_out = 0

        async def seen(message: Any) -> None:
            nonlocal status, bytes_out
            status = message.get("status", status)
            bytes_out += len(message.get("body", b""))
            await send(message)

        observer.begin(scope)  # type: ignore[arg-type]
        try:
            await self._answer(scope, receive, seen)
        finally:
            observer.end(scope, status, bytes_out)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                if self.took is not None:
                    self.took(scope, message["status"], began)
                headers = message["headers"] = [*message["headers"], *replies.SECURITY]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-cache" if scope["method"] in ("GET", "HEAD") else b"no-store"))
            await send(message)

        try:
            self.check(scope)
        except Refused as refused:
            status, headers, body = refusal(scope, refused)
            await guarded({"type": "http.response.start", "status": status, "headers": headers})
            await guarded({"type": "http.response.body", "body": body})
            return
        names = self.names(scope["method"], scope["path"])
        if names is None:
            asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope  # of that answer the body is not sent
            await self.app(asked, receive, guarded)
        else:
            scope["path_params"] = names
            await self.forward(scope, receive, guarded)


def open_paths(public: Collection[str]) -> frozenset[str]:
    """The paths that need no key; `public` names some of PUBLIC."""
    return frozenset(OPEN.union(*(PUBLIC[name] for name in public)))


def check_key(keys: KeyFile, unlocked: Collection[str], scope: Scope) -> None:
    """Let in who has a key; paths that are `unlocked` need none."""
    if scope["path"] not in unlocked and not scope["path"].startswith(OPEN_BELOW):
        scope["slotwise.key"] = keys.find(dict(scope["headers"]))


def check_certificate(own: str, scope: Scope) -> None:
    """Let in who has shown a certificate: TLS has checked it. Probes need none, nor does who knows `own` (gateway.json)."""
    if scope.get(CERTIFICATE) or scope["path"] in PROBES or scope["path"].startswith(PROBES_BELOW):
        return
    if not hmac.compare_digest(dict(scope["headers"]).get(b"authorization", b""), f"Bearer {own}".encode()):
        raise Refused(403, "this needs a client's certificate")


def model_names(method: str, path: str) -> Mapping[str, str] | None:
    """The model, and its version or "", that a request is for; None where it is for none that there can be."""
    return _names(path) if method in ("POST", "PUT") and len(path) <= LONGEST_MODEL_PATH else None


@lru_cache(maxsize=1024)
def _names(path: str) -> Mapping[str, str] | None:
    match = _MODEL_PATH(path)
    return {"model": match[1] or match[3], "version": match[2] or ""} if match else None


def refusal(scope: Scope, refused: Refused) -> ClientReply:
    """The answer to a request that does not get in. The body that may follow is not read: the connection is closed."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    identity = replies.request_id(given) or replies.new_id()
    if (seen := scope.get(SEEN)) is not None:
        seen.identity, seen.reason = identity, refused.logged
    about = {"fields": {"request_id": identity}}
    log.info("%s %r %d %s", identity, shown_path(scope["path"]), refused.status, refused.logged, extra=about)
    return replies.refusal(refused, identity)
