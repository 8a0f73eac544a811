"""SageMaker's multi-model contract: it has the container load a model when a request for it comes, and unload others.

The name of a model is SageMaker's, whatever its archive says. Source: SageMaker's documentation, "Custom Containers Contract
for Multi-Model Endpoints".
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

from slotwise.backends.interface import NoMemory, Refused
from slotwise.client.live_model import LiveModel
from slotwise.errors import SlotwiseError
from slotwise.frontend.forward import Forward
from slotwise.frontend.frontend import FRESH_S, Gateway
from slotwise.frontend.http import openapi
from slotwise.frontend.inference_request import NAME
from slotwise.frontend.protocols.records import ProtocolFault, parsed, small_body

log = logging.getLogger("slotwise.gateway")

BODY = {
    "type": "object",
    "required": ["model_name", "url"],
    "properties": {"model_name": {"type": "string", "pattern": f"^{NAME}$"}, "url": {"type": "string"}},
}
MISSING: dict[int | str, dict[str, Any]] = {404: openapi.failure("It is not loaded")}
REFUSED: dict[int | str, dict[str, Any]] = {
    400: openapi.failure("It cannot be loaded"),
    409: openapi.failure("It is loaded already"),
    503: openapi.failure("No model server is running"),
    507: openapi.failure("It does not fit into the memory"),
}


def add(app: FastAPI, gateway: Gateway, forward: Forward) -> None:
    """Add the contract's routes."""
    models = LoadedModels(gateway)
    app.router.routes.append(Route("/models/{model}/invoke", forward, methods=["POST"], include_in_schema=False))

    @app.get("/models", summary="SageMaker: the models that are loaded")
    async def listed() -> dict[str, list[dict[str, str]]]:
        await gateway.refresh(FRESH_S)
        loaded = (model for name, model in sorted(gateway.models.items()) if name not in models.busy)
        return {"models": [models.described(model) for model in loaded]}

    @app.get("/models/{model}", summary="SageMaker: one model that is loaded", responses=MISSING)
    async def one(model: str) -> dict[str, str]:
        return models.described(await models.found(model))

    given = {"requestBody": {"required": True, "content": {"application/json": {"schema": BODY}}}}

    @app.post("/models", summary="SageMaker: load a model", responses=REFUSED, openapi_extra=given)
    async def load(request: Request) -> Response:
        try:
            name, url = read(await small_body(request.stream()))
        except ProtocolFault as fault:
            raise HTTPException(400, fault.message) from None
        await models.load(name, url)
        return Response()

    @app.delete("/models/{model}", summary="SageMaker: unload a model", responses=MISSING)
    async def unload(model: str) -> Response:
        await models.unload(model)
        return Response()


def read(body: bytes) -> tuple[str, str]:
    """The name and the URL of the model that is to be loaded. Raises ProtocolFault."""
    content = parsed(body)
    name, url = content.get("model_name"), content.get("url")
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise ProtocolFault("model_name cannot be a model's name")
    if not isinstance(url, str) or not url or "\0" in url:
        raise ProtocolFault("url must be the path of an archive, or of the folder that holds it")
    return name, url


@dataclass
class LoadedModels:
    """The models that SageMaker had loaded. urls: where each came from, by its name.

    busy: those that are just being loaded or unloaded.
    """

    gateway: Gateway
    urls: dict[str, str] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)

    def described(self, model: LiveModel) -> dict[str, str]:
        """The model as SageMaker wants it described."""
        return {"modelName": model.name, "modelUrl": self.urls.get(model.name, model.archive)}

    async def found(self, name: str) -> LiveModel:
        """The model of this name. Raises HTTPException (404)."""
        await self.gateway.refresh(0)
        if name not in self.gateway.models or name in self.busy:
            raise HTTPException(404, "there is no such model")
        return self.gateway.models[name]

    async def load(self, name: str, url: str) -> None:
        """Load it and wait until it is ready. Raises HTTPException (400, 409, 503, 507)."""
        await self.gateway.refresh(0)
        if name in self.gateway.models or name in self.busy:
            raise HTTPException(409, f"{name} is loaded already")
        self.busy.add(name)
        try:
            await self.gateway.backend.load(name, url)
            self.urls[name] = url
        except Refused as refused:
            raise HTTPException(refused.status, refused.message) from None
        except (SlotwiseError, OSError) as error:
            log.warning("%s cannot be loaded: %r", name, str(error))
            status = 507 if isinstance(error, NoMemory) else 400
            raise HTTPException(status, f"{name} cannot be loaded: {error}") from error
        finally:
            self.busy.discard(name)
            await self.gateway.refresh(0)

    async def unload(self, name: str) -> None:
        """Unload it. Raises HTTPException (404, 503)."""
        await self.found(name)
        self.busy.add(name)  # who loads it meanwhile would have its archive removed
        try:
            await self.gateway.backend.unload(name)
            self.urls.pop(name, None)
        except Refused as refused:
            raise HTTPException(refused.status, refused.message) from None
        except SlotwiseError as error:
            raise HTTPException(503, f"{name} cannot be unloaded: {error}") from error
        finally:
            self.busy.discard(name)
            await self.gateway.refresh(0)
