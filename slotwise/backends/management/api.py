"""TorchServe's management API in front of a host of ours, so that `slotwise` and curl need not know which server it is.

POST   /models?url=NAME.mar&batch_size=8...    GET /models    GET /models/M[/VERSION|/all]    GET /ping
PUT    /models/M[/VERSION]?min_worker=2        PUT /models/M/VERSION/set-default    DELETE /models/M[/VERSION]
GET    /token?type=inference                   OPTIONS /    GET /api-description

Every call but the last two and /ping needs the management token, /token that of the API. A refusal is one object {"code",
"type", "message"}.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from aiohttp import web

from slotwise.backends.management import bearer
from slotwise.backends.management.bearer import Tokens
from slotwise.backends.management.descriptions import DESCRIPTION, described
from slotwise.backends.management.models import ApiError, HostedModel, ModelTable, refusal

T = TypeVar("T")
PAGE = 100
CHANGES = 4  # threads for calls that change models: one changes them, others download meanwhile
SYNCHRONOUS_S = 300.0
OPEN = ("/ping", "/", "/api-description")  # need no token, as on TorchServe
NOT_OFFERED = {
    404: ("ResourceNotFoundException", "Requested resource is not found, please refer to API document."),
    405: ("MethodNotAllowedException", "Requested method is not allowed, please refer to API document."),
}
PROCESSING = {"status": "Processing worker updates..."}

Answers = Callable[["ManagementCall"], Awaitable[web.Response]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ManagementCall(Protocol):
    """What a call says, whichever way it came. match_info: the name and the version of its address."""

    @property
    def query(self) -> Mapping[str, str]:
        """Its parameters."""

    @property
    def match_info(self) -> Mapping[str, str]:
        """Of which model it is."""


@dataclass(frozen=True)
class PlainCall:
    """A call that did not come to aiohttp (ManagementCall)."""

    query: Mapping[str, str] = field(default_factory=dict)
    match_info: Mapping[str, str] = field(default_factory=dict)


def application(models: ModelTable, tokens: Tokens, renewable: Collection[str] = ()) -> web.Application:
    """The API as an aiohttp application. A call has to bring the management token, the one for a new token that of the API.

    renewable: the kinds of tokens that can be made anew while the server runs.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            let_in(tokens, request.path, request.headers.get("Authorization", "").encode("utf-8", "surrogateescape"))
            return await handler(request)
        except Exception as error:
            return refused(error)

    app = web.Application(middlewares=[guarded])
    for method, path, call in routes(models, tokens, renewable):
        if method == "GET":
            app.router.add_get(path, call)  # and HEAD
        else:
            app.router.add_route(method, path, call)
    return app


def routes(models: ModelTable, tokens: Tokens, renewable: Collection[str] = ()) -> list[tuple[str, str, Answers]]:
    """Every call: its method, its path with {name} and {version} in it, and what answers it."""
    api = ManagementApi(models)

    async def token(request: ManagementCall) -> web.Response:
        if request.query.get("type") not in ("inference", "management"):
            raise ApiError(bearer.STATUS, bearer.TYPE, bearer.NO_NEW_TOKEN)
        if request.query["type"] not in renewable:
            raise ApiError(bearer.STATUS, bearer.TYPE, f"this server's {request.query['type']} token lasts as long as it runs")
        await asyncio.to_thread(tokens.renew, request.query["type"])
        return web.Response(text="\n", content_type="application/json")  # as TorchServe: it stands in key_file.json

    of_models: list[tuple[str, str, Answers]] = []
    for path in ("/models/{name}", "/models/{name}/{version}"):
        of_models += [("GET", path, api.describe), ("PUT", path, api.scale), ("DELETE", path, api.unregister)]
    return [
        ("GET", "/ping", api.ping),
        ("OPTIONS", "/", api.description),
        ("GET", "/api-description", api.description),
        ("GET", "/token", token),
        ("GET", "/models", api.list),
        ("POST", "/models", api.register),
        *of_models,
        ("PUT", "/models/{name}/{version}/set-default", api.set_default),
    ]


def let_in(tokens: Tokens, path: str, brought: bytes) -> None:
    """Raise ApiError where a call does not bring the token of its path. brought: its header Authorization."""
    kind = "API" if path == "/token" else "management"
    if path not in OPEN and not tokens.opens(kind, brought):
        raise ApiError(bearer.STATUS, bearer.TYPE, bearer.MESSAGE if kind != "API" else bearer.NO_NEW_TOKEN)


def refused(error: Exception) -> web.Response:
    """The answer to a call that raised this."""
    if isinstance(error, web.HTTPException):
        error = ApiError(error.status, *NOT_OFFERED.get(error.status, ("BadRequestException", error.reason)))
    known = refusal(error)
    body = {"code": known.status, "type": known.type_, "message": known.message}
    return web.json_response(body, status=known.status)


class ManagementApi:
    """The calls. What blocks runs in threads; what changes models in some of its own, as it may wait long for its turn."""

    def __init__(self, models: ModelTable) -> None:
        self.models = models
        self._threads = ThreadPoolExecutor(CHANGES, "management")

    async def ping(self, request: ManagementCall) -> web.Response:
        """Whether this process runs."""
        return web.json_response({"status": "Healthy"})

    async def description(self, request: ManagementCall) -> web.Response:
        """What can be called, as OpenAPI."""
        return web.json_response(DESCRIPTION)

    async def list(self, request: ManagementCall) -> web.Response:
        """Every model by name, a page at a time."""
        start, limit = max(0, _number(request, "next_page_token", 0)), _number(request, "limit", PAGE)
        limit = PAGE if limit < 0 else limit
        models = self.models.all()
        page: dict[str, Any] = {
            "models": [{"modelName": one.name, "modelUrl": one.archive} for one in models[start : start + limit]]
        }
        if start + limit < len(models):
            page = {"nextPageToken": str(start + limit), **page}
        return web.json_response(page)

    async def register(self, request: ManagementCall) -> web.Response:
        """Register an archive of the model store."""
        delay = request.query.get("max_batch_delay")
        settings = {
            "batch_size": _number(request, "batch_size", None),
            "max_batch_delay": None if delay is None else _float(delay),
            "initial_workers": _number(request, "initial_workers", None),
            "response_timeout": _number(request, "response_timeout", None),
            "startup_timeout": _number(request, "startup_timeout", None),
            "handler": request.query.get("handler"),
        }
        if (startup_s := settings["startup_timeout"]) is not None and startup_s < 1:
            raise ApiError(400, "BadRequestException", f"startup_timeout is below 1: {startup_s}")
        if "url" not in request.query:
            raise ApiError(400, "BadRequestException", "Parameter url is required.")
        archive, name = request.query["url"], request.query.get("model_name")
        if (runtime := request.query.get("runtime", "python")) not in ("python", "python3"):
            raise ApiError(400, "BadRequestException", f"Invalid RuntimeType value: {runtime:.40}")
        model = await self._change(partial(self.models.register, archive, name, **settings))
        workers = model.min_workers
        done = f'Model "{model.name}" Version: {model.version} registered with {workers} initial workers'
        if not workers:
            return web.json_response({"status": f"{done}. Use scale workers API to add workers for the model."})
        return await self._once_ready(request, model, done, "true")

    async def describe(self, request: ManagementCall) -> web.Response:
        """One version, or "all", as a list with an object a version. customized=true: with what the handler says of itself."""
        name, version = _named(request)
        models = self.models.versions(name) if version == "all" else [self.models.get(name, version)]
        asked = version != "all" and request.query.get("customized", "").lower() == "true"
        metadata = await self.models.customized(models[0]) if asked else None
        seen = await asyncio.gather(*(asyncio.to_thread(self.models.host.describe, model) for model in models))
        descriptions = [described(model, one) for model, one in zip(models, seen, strict=True)]
        if metadata is None:
            return web.json_response(descriptions)
        descriptions[0]["customizedMetadata"] = metadata.content
        return web.json_response(descriptions, status=metadata.status)

    async def scale(self, request: ManagementCall) -> web.Response:
        """Change the number of workers. The version stands in the address, or is a parameter, as on TorchServe."""
        name, version = _named(request)
        version = version or request.query.get("model_version")
        least = _number(request, "min_worker", 1)
        most = _number(request, "max_worker", least)
        model = await self._change(partial(self.models.scale, name, version, least, most))
        done = f"Workers scaled to {least} for model: {name}" + (f", version: {version}" if version else "")
        return await self._once_ready(request, model, done)

    async def set_default(self, request: ManagementCall) -> web.Response:
        """Make a version the default one."""
        name, version = request.match_info["name"], request.match_info["version"]
        await self._change(partial(self.models.set_default, name, version))
        return web.json_response({"status": f'Default version successfully updated for model "{name}" to "{version}"'})

    async def unregister(self, request: ManagementCall) -> web.Response:
        """Remove a model or a version of it."""
        name, version = _named(request)
        await self._change(partial(self.models.unregister, name, version))
        return web.json_response({"status": f'Model "{name}" unregistered'})

    async def _change(self, change: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, change)

    async def _once_ready(self, request: ManagementCall, model: HostedModel, done: str, usual: str = "false") -> web.Response:
        """Answer at once, or, where the call is to be synchronous, when the workers are there. usual: where it says nothing."""
        if request.query.get("synchronous", usual).lower() != "true":
            return web.json_response(PROCESSING, status=202)
        deadline = time.monotonic() + max(SYNCHRONOUS_S, model.startup_timeout_s)
        while time.monotonic() < deadline:
            seen = await asyncio.to_thread(self.models.host.describe, model)
            if seen.failure:
                what = f"Failed to start workers for model {model.name} version: {model.version}"
                raise ApiError(500, "InternalServerException", f"{what}: {seen.failure}")
            ready = sum(worker.status in ("READY", "ASLEEP") for worker in seen.workers)
            most = model.max_workers if "workers" in (seen.batch_cost or {}) else model.min_workers  # where its load chooses
            if model.min_workers <= ready == len(seen.workers) <= most:
                return web.json_response({"status": done})
            await asyncio.sleep(0.2)
        raise ApiError(408, "RequestTimeoutException", f"the workers of {model.name} are not ready yet")


def _named(request: ManagementCall) -> tuple[str, str | None]:
    return request.match_info["name"], request.match_info.get("version")


def _number(request: ManagementCall, key: str, default: Any) -> Any:
    text = request.query.get(key)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ApiError(400, "BadRequestException", f"{key} is not a whole number: {text[:40]}") from None


def _float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ApiError(400, "BadRequestException", f"max_batch_delay is not a number: {text[:40]}") from None
    if not 0 <= number <= 60_000:
        raise ApiError(400, "BadRequestException", f"max_batch_delay is not between 0 and 60000 ms: {text[:40]}")
    return int(number) if number.is_integer() else number
