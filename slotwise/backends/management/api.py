"""TorchServe's management API in front of a host of ours, so that `slotwise` and curl need not know which server it is.

POST   /models?url=NAME.mar&batch_size=8...    GET /models    GET /models/M[/VERSION|/all]    GET /ping
PUT    /models/M[/VERSION]?min_worker=2        PUT /models/M/VERSION/set-default    DELETE /models/M[/VERSION]

Every call but /ping needs the management token. A refusal is one object {"code", "type", "message"}.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from slotwise.backends.management import bearer
from slotwise.backends.management.models import ApiError, HostedModel, ModelTable, Observation, refusal

PAGE = 100
SYNCHRONOUS_S = 300.0
KEYS = ("management", "inference", "API")
PROCESSING = {"status": "Processing worker updates..."}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def write_tokens(state_dir: Path) -> dict[str, str]:
    """Make new tokens, which hold as long as the server runs, and write key_file.json in TorchServe's form."""
    tokens = {kind: secrets.token_urlsafe(24) for kind in KEYS}
    partial = state_dir / "key_file.json.partial"
    partial.touch(mode=0o600)
    partial.write_text(json.dumps({kind: {"key": token} for kind, token in tokens.items()}, indent=2), "utf-8")
    partial.replace(state_dir / "key_file.json")
    return tokens


def application(models: ModelTable, token: str) -> web.Application:
    """The API as an aiohttp application. token: what a call has to bring."""
    api, expected = ManagementApi(models), bearer.digest(token)

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.path != "/ping" and not bearer.brings(request.headers.get("Authorization", ""), expected):
                raise ApiError(bearer.STATUS, bearer.TYPE, bearer.MESSAGE)
            return await handler(request)
        except web.HTTPException as error:
            return _error(ApiError(error.status, "MethodNotAllowedException", error.reason))
        except Exception as error:
            return _error(refusal(error))

    app = web.Application(middlewares=[guarded])
    app.router.add_get("/ping", api.ping)
    app.router.add_get("/models", api.list)
    app.router.add_post("/models", api.register)
    for path in ("/models/{name}", "/models/{name}/{version}"):
        app.router.add_get(path, api.describe)
        app.router.add_put(path, api.scale)
        app.router.add_delete(path, api.unregister)
    app.router.add_put("/models/{name}/{version}/set-default", api.set_default)
    return app


class ManagementApi:
    """The calls. What blocks runs in threads."""

    def __init__(self, models: ModelTable) -> None:
        self.models = models

    async def ping(self, request: web.Request) -> web.Response:
        """Whether this process runs."""
        return web.json_response({"status": "Healthy"})

    async def list(self, request: web.Request) -> web.Response:
        """Every model by name, a page at a time."""
        start, limit = _number(request, "next_page_token", 0), max(1, _number(request, "limit", PAGE))
        models = self.models.all()
        page: dict[str, Any] = {
            "models": [{"modelName": one.name, "modelUrl": one.info.path.name} for one in models[start : start + limit]]
        }
        if start + limit < len(models):
            page = {"nextPageToken": str(start + limit), **page}
        return web.json_response(page)

    async def register(self, request: web.Request) -> web.Response:
        """Register an archive of the model store."""
        delay = request.query.get("max_batch_delay")
        settings = {
            "batch_size": _number(request, "batch_size", None),
            "max_batch_delay": None if delay is None else _float(delay),
            "initial_workers": _number(request, "initial_workers", None),
            "response_timeout": _number(request, "response_timeout", None),
        }
        archive, name = request.query.get("url", ""), request.query.get("model_name")
        model = await asyncio.to_thread(self.models.register, archive, name, **settings)
        workers = model.min_workers
        done = f'Model "{model.name}" Version: {model.version} registered with {workers} initial workers'
        return await self._once_ready(request, model, done) if workers else web.json_response({"status": done})

    async def describe(self, request: web.Request) -> web.Response:
        """One version, or "all", as a list with an object a version."""
        name, version = _named(request)
        models = self.models.versions(name) if version == "all" else [self.models.get(name, version)]
        seen = await asyncio.gather(*(asyncio.to_thread(self.models.host.describe, model) for model in models))
        return web.json_response([described(model, one) for model, one in zip(models, seen, strict=True)])

    async def scale(self, request: web.Request) -> web.Response:
        """Change the number of workers."""
        name, version = _named(request)
        least = _number(request, "min_worker", 1)
        most = _number(request, "max_worker", least)
        model = await asyncio.to_thread(self.models.scale, name, version, least, most)
        return await self._once_ready(request, model, f"Workers scaled to {least} for model: {name}")

    async def set_default(self, request: web.Request) -> web.Response:
        """Make a version the default one."""
        name, version = request.match_info["name"], request.match_info["version"]
        await asyncio.to_thread(self.models.set_default, name, version)
        return web.json_response({"status": f'Default version successfully updated for model "{name}" to "{version}"'})

    async def unregister(self, request: web.Request) -> web.Response:
        """Remove a model or a version of it."""
        name, version = _named(request)
        await asyncio.to_thread(self.models.unregister, name, version)
        return web.json_response({"status": f'Model "{name}" unregistered'})

    async def _once_ready(self, request: web.Request, model: HostedModel, done: str) -> web.Response:
        """Answer at once, or, where the call is to be synchronous, when the workers are there."""
        if request.query.get("synchronous", "false").lower() != "true":
            return web.json_response(PROCESSING, status=202)
        deadline = time.monotonic() + SYNCHRONOUS_S
        while time.monotonic() < deadline:
            seen = await asyncio.to_thread(self.models.host.describe, model)
            if seen.failure:
                raise ApiError(500, "InternalServerException", seen.failure)
            if sum(worker.status == "READY" for worker in seen.workers) == model.min_workers == len(seen.workers):
                return web.json_response({"status": done})
            await asyncio.sleep(0.2)
        raise ApiError(408, "RequestTimeoutException", f"the workers of {model.name} are not ready yet")


def described(model: HostedModel, seen: Observation) -> dict[str, Any]:
    """One version as TorchServe describes it; `got`, `node` and `failure` are ours."""
    workers = [
        {
            "id": worker.id,
            "status": worker.status,
            "memoryUsage": worker.memory_bytes,
            "pid": worker.pid,
            "gpu": worker.gpu,
            "got": dict(worker.got),
            "node": worker.node,
        }
        for worker in seen.workers
    ]
    return {
        "modelName": model.name,
        "modelVersion": model.version,
        "modelUrl": model.info.path.name,
        "runtime": "python",
        "minWorkers": model.min_workers,
        "maxWorkers": model.max_workers,
        "batchSize": model.batch_size,
        "maxBatchDelay": model.max_batch_delay_ms,
        "responseTimeout": model.response_timeout_s,
        "loadedAtStartup": False,
        "workers": workers,
        "failure": seen.failure,
    }


def _named(request: web.Request) -> tuple[str, str | None]:
    return request.match_info["name"], request.match_info.get("version")


def _number(request: web.Request, key: str, default: Any) -> Any:
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


def _error(error: ApiError) -> web.Response:
    body = {"code": error.status, "type": error.type_, "message": error.message}
    return web.json_response(body, status=error.status)
