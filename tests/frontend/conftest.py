"""A gateway in this process in front of a stand-in server; requests go to the app directly."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from slotwise.backends.remote import hedging
from slotwise.backends.remote.remote_backend import RemoteBackend
from slotwise.backends.remote.server_view import ModelLoader, ServerView, described
from slotwise.client.management import ManagementClient
from slotwise.client.tokens import auth_headers
from slotwise.frontend.frontend import Gateway, GatewayOptions
from slotwise.frontend.http.app import build_app
from slotwise.server.lifecycle import ServerRecord

from .live import LiveFront, shared_front
from .standin import StandIn
from .streaming import Streaming


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="package")
def live_front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFront]:
    """One gateway process for all tests that speak to it over sockets. No second copies because a busy machine stands still."""
    with shared_front(tmp_path_factory.mktemp("live_front"), "--timeout-s", "10", "--allow-host", "x", "--no-hedge") as front:
        yield front


@dataclass
class Front:
    """What a test holds: the gateway, a client of it, the server behind it, and the record that it follows."""

    gateway: Gateway
    backend: RemoteBackend
    client: httpx.AsyncClient
    server: StandIn
    record: ServerRecord | None

    async def predict(self, body: bytes = b"picture", model: str = "digits", **given: Any) -> httpx.Response:
        return await self.client.post(f"/predictions/{model}", content=body, **given)


MakeFront = Callable[..., Awaitable[Front]]


@pytest.fixture
async def make_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: str) -> AsyncIterator[MakeFront]:
    monkeypatch.setattr(hedging, "LATE_WITHOUT_TIMES_S", 120.0)  # no second copies because a busy machine stands still
    async with AsyncExitStack() as stack:

        async def make(
            server: StandIn | None = None, max_body_bytes: int = 2**20, loader: ModelLoader | None = None, **options: Any
        ) -> Front:
            server = await stack.enter_async_context(server or StandIn())
            record = server.record(tmp_path)

            def models(live: ServerRecord) -> list[Any]:
                with ManagementClient(live) as client:
                    return described(client)

            view = ServerView(lambda: front.record, models, auth_headers, lambda _: max_body_bytes)
            backend = RemoteBackend(view, GatewayOptions(**options).timeout_s, loader)
            gateway = Gateway(backend, GatewayOptions(**options), on_demand=loader is not None)
            stack.push_async_callback(gateway.close)
            transport = httpx.ASGITransport(build_app(gateway), raise_app_exceptions=False)
            client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://gateway"))
            front = Front(gateway, backend, client, server, record)
            await gateway.refresh(0)
            return front

        yield make


@pytest.fixture
def streaming(front: Front, monkeypatch: pytest.MonkeyPatch) -> Streaming:
    """In place of what the module's own front asks."""
    backend = Streaming()
    monkeypatch.setattr(front.gateway.backend, "answer", backend.answer)
    monkeypatch.setattr(front.gateway.backend, "streams", True)
    return backend
