"""The gateway's routes. Requests to models go through `Forward` for speed; everything else is ordinary FastAPI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from slotwise import __version__
from slotwise.backends.catalog import ModelCard
from slotwise.backends.exchange import CLIENT_GONE
from slotwise.frontend import replies
from slotwise.frontend.admission.keys import OWN
from slotwise.frontend.forward import Forward
from slotwise.frontend.frontend import FRESH_S, Gateway
from slotwise.frontend.http import openapi
from slotwise.frontend.http.access import Check, Entrance, check_certificate, check_key, open_paths
from slotwise.frontend.http.allowed_hosts import AllowedHosts
from slotwise.frontend.metrics import printed
from slotwise.frontend.observing.remembered import Remembered, as_json
from slotwise.frontend.observing.seen_request import shown_path
from slotwise.frontend.protocols import multi_model, routes
from slotwise.frontend.protocols.known_model import open_models

log = logging.getLogger("slotwise.gateway")

PAGE = Path(__file__).parents[1] / "page"
Answers = dict[int | str, dict[str, Any]]


def build_app(
    gateway: Gateway, public: Collection[str] = (), hosts: AllowedHosts | None = None, certified: str = ""
) -> Entrance:
    """The application of one gateway. While it runs, the gateway follows its server.

    public: what needs no key, where there are keys: metrics, status, docs. hosts: the names it goes by; None: any.
    certified: where clients have to show a certificate, what stands for one; "": they need none.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await gateway.first_look()
        watching = [asyncio.create_task(gateway.watch()), asyncio.create_task(gateway.loop_blocks.watch())]
        yield
        for task in watching:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await gateway.close()

    app = FastAPI(
        title="Slotwise gateway",
        version=__version__,
        description="REST in front of a batching model server. Every error is JSON with a request id.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,  # a 307 without a body looks like a success to whoever does not follow it
    )
    forward = Forward(gateway)
    _add_forwards(app, gateway, forward)
    routes.add(app, gateway, forward)
    if gateway.on_demand:
        multi_model.add(app, gateway, forward)
    _add_state(app, gateway)
    _add_pages(app, gateway)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _crash)
    openapi.describe(app)
    checks: list[Check] = [hosts] if hosts else []
    if certified:
        checks.append(partial(check_certificate, certified))
    if gateway.keys:
        checks.append(partial(check_key, gateway.keys, open_paths(public)))
    entrance = Entrance(app, forward, checks)
    entrance.observer = gateway.observer
    return entrance


def _add_forwards(app: FastAPI, gateway: Gateway, by_path: Forward) -> None:
    for path in ("/predictions/{model}", "/predictions/{model}/{version}", "/classify/{model}"):
        app.router.routes.append(Route(path, by_path, methods=["POST", "PUT"], include_in_schema=False))
    if not gateway.on_demand:  # TorchServe's other name for it; SageMaker's, where models come on demand
        app.router.routes.append(Route("/models/{model}/invoke", by_path, methods=["POST"], include_in_schema=False))
    for path, model in (("/caption", "captions"), ("/translation", "translation")):
        app.router.routes.append(Route(path, Forward(gateway, model), methods=["POST"], include_in_schema=False))


def _add_state(app: FastAPI, gateway: Gateway) -> None:
    text = openapi.content("text/plain", "Metrics as text")

    def with_cards(request: Request) -> list[dict[str, Any]]:
        """Of the models that the request's key opens."""
        seen = {live.name for live in open_models(gateway, request.scope.get("slotwise.key"))}
        default = gateway.options.default_model or (next(iter(gateway.models)) if len(gateway.models) == 1 else "")
        return [
            {**model, **_card_json(model["name"], gateway.card(model["name"])), "default": model["name"] == default}
            for model in gateway.described()
            if model["name"] in seen
        ]

    if not gateway.on_demand:

        @app.get("/models", summary="The models that the server has, and what each takes")
        async def models(request: Request) -> dict[str, Any]:
            await gateway.refresh(FRESH_S)
            return {"models": with_cards(request)}

    @app.get("/status", summary="The server, its models' batch settings and what each takes, and what is in flight")
    async def status(request: Request) -> dict[str, Any]:
        await gateway.refresh(FRESH_S)
        state, key = gateway.status(), request.scope.get("slotwise.key")
        rollouts = [one for one in state["rollouts"] if key is None or key.opens(one["model"])]
        return {**state, "rollouts": rollouts, "models": with_cards(request)}

    not_told: Answers = {403: openapi.failure("For the operator only"), 404: openapi.failure("It is not remembered")}

    @app.get("/status/requests/{request_id}", summary="What became of one of the last requests", responses=not_told)
    async def one_request(request: Request, request_id: str) -> dict[str, Any]:
        seen = _remembered(gateway, request).find(request_id)
        if seen is None:
            raise HTTPException(404, "no such request is remembered")
        return as_json(seen)

    @app.get("/status/top", summary="The last seconds by model: answers, times, batches, errors by cause", responses=not_told)
    async def top(request: Request) -> dict[str, Any]:
        numbers = _remembered(gateway, request).numbers()
        await gateway.refresh(FRESH_S)
        return {**gateway.status(), "last": numbers}

    not_ready: Answers = {503: {"description": "Not ready"}}

    @app.get("/ready", summary="200 while one of the models is ready", responses=not_ready)
    async def ready() -> JSONResponse:
        state = {"ready": gateway.ready(), "draining": gateway.draining, "models": gateway.workers()}
        return JSONResponse(state, 200 if gateway.ready() else 503)

    missing = openapi.failure("No such model")

    @app.get("/ready/{model}", summary="200 while this model is ready", responses={**not_ready, 404: missing})
    async def model_ready(model: str) -> JSONResponse:
        if model not in gateway.models:
            gateway.look_soon()
            raise HTTPException(404, "there is no such model")
        ready = gateway.model_ready(model)
        return JSONResponse({"ready": ready, "workers": gateway.workers()[model]}, 200 if ready else 503)

    @app.get("/healthz", summary="200 while this process runs")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", summary="Prometheus metrics", response_class=Response, responses={200: text})
    async def metrics(request: Request) -> Response:
        text, kind = printed(gateway.metrics.registry, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": kind})

    failures: Answers = {200: text, 404: openapi.failure("It has none"), 502: openapi.failure("It does not answer")}

    @app.get("/metrics/server", summary="The server's own Prometheus metrics", response_class=Response, responses=failures)
    async def server_metrics() -> Response:
        try:
            answer = await gateway.backend.metrics()
        except OSError as error:
            raise HTTPException(502, "the server's metrics do not answer") from error
        if answer is None:
            raise HTTPException(404, "there is no server with Prometheus metrics")
        return Response(answer.body, answer.status, media_type="text/plain; version=0.0.4")


def _remembered(gateway: Gateway, request: Request) -> Remembered:
    """The requests that are remembered: names of keys and addresses are the operator's business. Raises HTTPException."""
    if gateway.keys is not None and request.scope["slotwise.key"].name != OWN:
        raise HTTPException(403, "only the operator may see other requests: `slotwise trace`, `slotwise top`")
    if gateway.observer is None or gateway.observer.remembered is None:
        raise HTTPException(404, "no requests are remembered here: start it with --remember 2000")
    return gateway.observer.remembered


def _card_json(name: str, card: ModelCard) -> dict[str, Any]:
    """A model's card as the page reads it."""
    examples = [f"/examples/{quote(name)}/{quote(example)}" for example in card.examples]
    return {**{key: getattr(card, key) for key in ("description", "takes", "draw", "side", "languages")}, "examples": examples}


def _add_pages(app: FastAPI, gateway: Gateway) -> None:
    answers: Answers = {
        200: openapi.content("*/*", "The body"),
        404: openapi.failure("There is no such example"),
        403: openapi.failure("Not this key's model"),
    }

    @app.get("/examples/{model}/{name}", summary="An example body of a model", response_class=Response, responses=answers)
    async def example(request: Request, model: str, name: str) -> Response:
        key = request.scope.get("slotwise.key")
        if key and not key.opens(model):
            raise HTTPException(403, "this key may not use this model")
        body = gateway.card(model).examples.get(name)
        if body is None:
            raise HTTPException(404, "there is no such example")
        return Response(body.data, media_type=body.content_type)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(PAGE / "docs.html")

    @app.get("/index.html", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    @app.get("/", include_in_schema=False)
    async def root(request: Request) -> Response:
        """The page for a browser; KServe's client asks here whether a V1 server is alive."""
        return await page() if "text/html" in request.headers.get("accept", "") else JSONResponse({"status": "alive"})

    app.mount("/static", StaticFiles(directory=PAGE), name="static")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    identity = replies.request_id(request.headers.get("x-request-id")) or replies.new_id()
    body = replies.error_body(error.status_code, str(error.detail), identity)
    headers = {**(error.headers or {}), "x-request-id": identity}
    return Response(body, error.status_code, headers, media_type="application/json")


async def _gone(request: Request, _: Exception) -> Response:
    """End what nobody waits for any more: it is no failure of this process."""
    return Response(status_code=CLIENT_GONE)


async def _crash(request: Request, _: Exception) -> Response:
    """Answer 500, and log the request id; uvicorn writes the trace below it."""
    answer = await _http_error(request, HTTPException(500, replies.CRASH))
    log.error("%s %s", answer.headers["x-request-id"], shown_path(request.url.path))
    return answer
