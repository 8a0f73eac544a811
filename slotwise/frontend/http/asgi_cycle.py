"""One request and its answer as ASGI has them: what is not for a model."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from slotwise.frontend.http.direct import what_is_read
from slotwise.frontend.http.request_head import RequestHead
from slotwise.frontend.inference_request import ABORT, Scope


class AsgiCycle(RequestResponseCycle):
    """A request and its answer."""

    written = 0  # bytes of the answer's body
    closes = False  # whether its connection, which does so, ends with it

    async def send(self, message: Any) -> None:
        """See RequestResponseCycle. Who was not told to send its body may do so or not: what comes next cannot be told."""
        if message["type"] == "http.response.start" and self.waiting_for_100_continue:
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await super().send(message)
        if message["type"] == "http.response.start":
            self.closes, self.keep_alive = not self.keep_alive, True
        self.written += len(message.get("body", b""))


def as_asgi(connection: HttpToolsProtocol, head: RequestHead, certified: bool) -> Scope:
    """A request that has come on a connection."""
    return {
        **what_is_read(head, connection.client, certified, {}),
        "asgi": {"version": connection.asgi_version, "spec_version": "2.3"},
        "http_version": head.version,
        "server": connection.server,
        "scheme": connection.scheme,
        "root_path": "",
        "headers": list(head.headers),
        "state": connection.app_state.copy(),
        ABORT: connection.transport.abort,  # the answer begins later
    }
