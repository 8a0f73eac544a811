"""The management and metrics ports of a deployment."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import generate_latest

from slotwise import __version__
from slotwise.backends.management.api import Handler, application
from slotwise.backends.management.bearer import Tokens
from slotwise.drop_in.configuration import Address, Configuration
from slotwise.drop_in.inference_api import NOT_ALLOWED, NOT_FOUND, PREFLIGHT, cors_headers, torchserve_error
from slotwise.drop_in.model_table import DropInModels
from slotwise.drop_in.one_port import CHANGES
from slotwise.drop_in.server_numbers import ServerNumbers
from slotwise.errors import SlotwiseError
from slotwise.frontend.frontend import Gateway
from slotwise.server import supervisor

log = logging.getLogger("org.pytorch.serve.ModelServer")  # whose lines these are

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

Took = Callable[
    [str, str, str, int, float], None
]  # client, method, target, status, and when it began on time.monotonic's clock


@asynccontextmanager
async def management(configuration: Configuration, models: DropInModels, tokens: Tokens, took: Took) -> AsyncIterator[None]:
    """Within, models can be registered, where that is on, described and scaled."""
    changeable = configuration.flag("enable_model_api")

    @web.middleware
    async def allowed(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not changeable and request.method in CHANGES and request.path.startswith("/models"):
            return _refused(405, NOT_ALLOWED)
        return await handler(request)

    app = application(models, tokens, ("management", "inference") if configuration.tokens else (), [allowed])
    _watched(app, took, cors_headers(configuration))
    address = configuration.address("management")
    async with supervisor.web_application(app, (address.host, address.port), _tls(configuration, address)):
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

    async def answer(request: web.Request) -> web.Response:
        text = metrics_text(gateway, numbers, request.query.getall("name[]", []))
        return web.Response(body=text, headers={"content-type": PROMETHEUS})

    async def description(request: web.Request) -> web.Response:
        paths = {"/metrics": {"get": {"description": "TorchServe's metrics", "responses": {"200": {"description": "OK"}}}}}
        return web.json_response({"openapi": "3.0.1", "info": {"title": "Metrics", "version": __version__}, "paths": paths})

    @web.middleware
    async def shaped(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _refused(error.status, {404: NOT_FOUND, 405: NOT_ALLOWED}.get(error.status, error.reason))

    app = web.Application(middlewares=[shaped])
    app.router.add_route("*", "/metrics", answer)  # as there
    app.router.add_route("OPTIONS", "/", description)
    app.router.add_get("/api-description", description)
    _watched(app, took, cors_headers(configuration))
    address = configuration.address("metrics")
    async with supervisor.web_application(app, (address.host, address.port), _tls(configuration, address)):
        log.info("Metrics API bind to: %s", address.url)
        yield


def metrics_text(gateway: Gateway, numbers: ServerNumbers, names: Sequence[str]) -> bytes:
    """TorchServe's metrics of these names; of all, and behind them ours, where there are none."""
    text = numbers.text(list(names)).encode()
    if numbers.mode == "prometheus" and not names:
        text += generate_latest(gateway.metrics.registry)
    return text


def _watched(app: web.Application, took: Took, headers: dict[str, str]) -> None:
    """Have every answer of an aiohttp application told, and give it these headers."""

    @web.middleware
    async def watched(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.monotonic()
        preflight = headers and request.method == "OPTIONS" and PREFLIGHT in request.headers
        answer = web.Response() if preflight else await handler(request)
        answer.headers.update(headers)
        peer = request.transport.get_extra_info("peername") if request.transport else None
        took(f"{peer[0]}:{peer[1]}" if peer else "", request.method, request.path_qs, answer.status, began)
        return answer

    app.middlewares.insert(0, watched)


def _refused(status: int, message: str) -> web.Response:
    return web.Response(body=torchserve_error(status, message, ""), status=status, content_type="application/json")


def _tls(configuration: Configuration, address: Address) -> ssl.SSLContext | None:
    if not address.tls or configuration.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(*configuration.certificate)
    except (OSError, ssl.SSLError) as error:
        raise SlotwiseError(
            f"the certificate cannot be used: {error}", "certificate_file and private_key_file are PEM"
        ) from error
    return context
