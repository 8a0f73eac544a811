"""Around all routes: security headers on the way out and, where they are asked for, a certificate and a key on the way in."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Collection
from typing import Any

from slotwise.backends.interface import Refused
from slotwise.frontend import replies
from slotwise.frontend.admission.keys import KeyFile
from slotwise.frontend.admission.limits import Receive
from slotwise.frontend.forward import Send
from slotwise.frontend.inference_request import CERTIFICATE, Scope

log = logging.getLogger("slotwise.gateway")

PROBES, PROBES_BELOW = {"/healthz", "/ready", "/ping"}, ("/ready/", "/v2/health/")
OPEN = PROBES | {"/", "/index.html"}  # the page holds no secret, and asks for a key
OPEN_BELOW = ("/static/", *PROBES_BELOW)
PUBLIC = {"metrics": ("/metrics", "/metrics/server"), "status": ("/status",), "docs": ("/docs", "/openapi.json")}


class SecurityHeaders:
    """Puts the security headers on every answer; nothing but static files may be cached."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"] = [*message["headers"], *replies.SECURITY]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-cache" if scope["method"] == "GET" else b"no-store"))
            await send(message)

        await self.app(scope, receive, guarded)


class KeyGuard:
    """Lets in who has a key; `public` names what needs none besides."""

    def __init__(self, app: Any, keys: KeyFile, public: Collection[str] = ()) -> None:
        self.app, self.keys = app, keys
        self.open = OPEN.union(*[PUBLIC[name] for name in public])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; its key stands in the scope from here on."""
        if scope["type"] == "http" and scope["path"] not in self.open and not scope["path"].startswith(OPEN_BELOW):
            try:
                scope["slotwise.key"] = self.keys.find(dict(scope["headers"]))
            except Refused as refused:
                await refuse(scope, send, refused)
                return
        await self.app(scope, receive, send)


class CertificateGuard:
    """Lets in who has shown a certificate: TLS has checked it. Probes need none, nor does who knows `own` (gateway.json)."""

    def __init__(self, app: Any, own: str) -> None:
        self.app, self._own = app, f"Bearer {own}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http" and not scope.get(CERTIFICATE) and not self._needs_none(scope):
            await refuse(scope, send, Refused(403, "this needs a client's certificate"))
            return
        await self.app(scope, receive, send)

    def _needs_none(self, scope: Scope) -> bool:
        if scope["path"] in PROBES or scope["path"].startswith(PROBES_BELOW):
            return True
        return hmac.compare_digest(dict(scope["headers"]).get(b"authorization", b""), self._own)


async def refuse(scope: Scope, send: Send, refused: Refused) -> None:
    """Answer a request that does not get in. The body that may follow is not read: the connection is closed."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    identity = replies.request_id(given) or replies.new_id()
    log.info("%s %r %d %s", identity, scope["path"][:200], refused.status, refused.message)
    body = replies.error_body(refused.status, refused.message, identity)
    headers = [
        replies.JSON_TYPE,
        (b"x-request-id", identity.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        *replies.ANSWER,
        *refused.headers(),
    ]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
