"""The management and metrics ports of a deployment."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, parse_qsl, unquote

from aiohttp import web
from prometheus_client import generate_latest

from slotwise import __version__
from slotwise.backends.management.bearer import Tokens
from slotwise.drop_in.archive_source import shown
from slotwise.drop_in.configuration import Address, Configuration
from slotwise.drop_in.inference_api import (
    DESCRIBED,
    NOT_ALLOWED,
    NOT_FOUND,
    cors_headers,
    is_preflight,
    send_answer,
    torchserve_error,
    without_slash,
)
from slotwise.drop_in.line_files import LogFiles
from slotwise.drop_in.model_table import KEYS, DropInModels
from slotwise.drop_in.one_port import PROMETHEUS, OnePort
from slotwise.drop_in.server_numbers import ServerNumbers
from slotwise.frontend import replies
from slotwise.frontend.admission.limits import Receive
from slotwise.frontend.forward import Send
from slotwise.frontend.frontend import Gateway
from slotwise.frontend.inference_request import Scope
from slotwise.frontend.serve import Access
from slotwise.host.server import listening

log = logging.getLogger("org.pytorch.serve.ModelServer")  # whose lines these are

OF_REGISTRATIONS = {"url", "model_name", "handler", "runtime", "synchronous", *KEYS.values()}
Took = Callable[
    [str, str, str, int, float], None
]  # client, method, target, status, and when it began on time.monotonic's clock


@asynccontextmanager
async def management(
    configuration: Configuration, gateway: Gateway, models: DropInModels, tokens: Tokens, took: Took
) -> AsyncIterator[None]:
    """Within, models can be registered, where that is on, described and scaled."""
    app = PortEntrance(OnePort(configuration, models, tokens).answer, took, bool(cors_headers(configuration)))
    address = configuration.address("management")
    async with listening(app, gateway, (address.host, address.port), access_to(configuration, address)):
        log.info("Management API bind to: %s", address.url)
        yield


@asynccontextmanager
async def metrics(
    configuration: Configuration,
    gateway: Gateway,
    numbers: ServerNumbers,
    took: Took,
) -> AsyncIterator[None]:
    """Within, Prometheus reads TorchServe's metrics, and behind them ours."""
    paths = {"/metrics": {"get": {"description": "TorchServe's metrics", "responses": {"200": {"description": "OK"}}}}}
    description = {"openapi": "3.0.1", "info": {"title": "Metrics", "version": __version__}, "paths": paths}

    async def answer(scope: Scope, receive: Receive) -> web.Response:
        path, method = scope["path"], scope["method"]
        if path == "/metrics":  # by any method, as there
            names = parse_qs(scope["query_string"].decode("latin-1")).get("name[]", [])
            return web.Response(body=metrics_text(gateway, numbers, names), headers={"content-type": PROMETHEUS})
        if (path, method) in DESCRIBED:
            return web.json_response(description)
        status = 405 if path in dict(DESCRIBED) else 404
        return web.Response(
            body=torchserve_error(status, NOT_ALLOWED if status == 405 else NOT_FOUND, ""),
            status=status,
            content_type="application/json",
        )

    app = PortEntrance(answer, took, bool(cors_headers(configuration)))
    address = configuration.address("metrics")
    async with listening(app, gateway, (address.host, address.port), access_to(configuration, address)):
        log.info("Metrics API bind to: %s", address.url)
        yield


class PortEntrance:
    """Answers on one of these ports, behind the front's own reader of HTTP and its limits. cors: whether pages may call."""

    def __init__(self, answer: Callable[[Scope, Receive], Awaitable[web.Response]], took: Took, cors: bool) -> None:
        self.answer, self.took, self.cors = answer, took, cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. Its body, where there is one, is read by whoever answers."""
        if scope["type"] != "http":
            return
        began = time.monotonic()
        answer = web.Response() if self.cors and is_preflight(scope) else await self.answer(without_slash(scope), receive)
        host, port = scope["client"] or ("", 0)
        query = scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        self.took(f"{host}:{port}" if host else "", scope["method"], target, answer.status, began)
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        await send_answer(send, answer, replies.request_id(given))


def access_to(configuration: Configuration, address: Address) -> Access:
    """How one reaches an address: over TLS where it is https, and from other pages where the deployment says so."""
    cert, key = configuration.certificate if address.tls and configuration.certificate else (None, None)
    access = Access(tls_cert=cert, tls_key=key, headers=tuple(cors_headers(configuration).items()))
    access.check()
    return access


def grpc_line(files: LogFiles) -> Callable[[str, str, int, float], None]:
    """What writes a line for every call of gRPC. It counts among no requests, as on TorchServe."""

    def told(client: str, method: str, code: int, began: float) -> None:
        ms = int((time.monotonic() - began) * 1000)
        files.access(f'/{client} "gRPC {method} HTTP/2.0" {code} {ms}')

    return told


def metrics_text(gateway: Gateway, numbers: ServerNumbers, names: Sequence[str]) -> bytes:
    """TorchServe's metrics of these names; of all, and behind them ours, where there are none."""
    text = numbers.text(list(names)).encode()
    if numbers.mode == "prometheus" and not names:
        text += generate_latest(gateway.metrics.registry)
    return text


def printable(target: str) -> str:
    """A target, as it was sent, for a line of a log: of an archive's address nothing that may be secret."""
    path, _, query = target.partition("?")
    named = parse_qsl(query, keep_blank_values=True) if unquote(path).rstrip("/") == "/models" else []
    if "url" in dict(named):
        target = f"{path}?" + "&".join(f"{name}={shown(value)}" for name, value in named if name in OF_REGISTRATIONS)
    return target if target.isprintable() and len(target) < 2000 else ascii(target[:2000])[1:-1]
