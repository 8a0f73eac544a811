"""The shortest proxy in front of a model server: no limits, no second try, no metrics. It costs what its server and client do.

python shortest.py uvicorn|granian aiohttp|slotwise    the server's address, the headers with its token: JSON on stdin
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

SERVER, CLIENT = sys.argv[1], sys.argv[2]
UPSTREAM = json.loads(sys.stdin.readline())


class Aiohttp:
    """aiohttp's client, as a proxy would use it."""

    def __init__(self) -> None:
        import aiohttp

        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        )

    async def ask(self, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """The answer's status and body."""
        async with self.session.post(UPSTREAM["url"] + target, data=body, headers=headers) as response:
            return response.status, await response.read()


class Slotwise:
    """The gateway's own client."""

    def __init__(self) -> None:
        from slotwise.backends.remote.connection_pool import ConnectionPool

        self.pool = ConnectionPool(UPSTREAM["url"])

    async def ask(self, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """The answer's status and body."""
        status, _, answer = await self.pool.request("POST", target, headers, body)
        return status, answer


client: Any = None


async def app(scope: Any, receive: Any, send: Any) -> None:
    """One request; the lifespan's messages, too."""
    global client
    if scope["type"] == "lifespan":
        return
    client = client or {"aiohttp": Aiohttp, "slotwise": Slotwise}[CLIENT]()
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    headers = {"content-type": "application/octet-stream", **UPSTREAM["headers"]}
    status, answer = await client.ask(scope["path"], headers, b"".join(parts))
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": answer})


def main() -> None:
    """Serve on a free port, and print it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    print(port, flush=True)
    if SERVER == "uvicorn":
        import uvicorn

        uvicorn.run(app, port=port, access_log=False, log_level="warning", lifespan="off")
    else:
        import uvloop
        from granian.server.embed import Server

        uvloop.run(Server(app, port=port, interface="asginl", log_access=False).serve())


if __name__ == "__main__":
    main()
