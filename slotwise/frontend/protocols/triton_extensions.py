"""Three of Triton's extensions to the Open Inference Protocol: a model's configuration, its statistics, the repository's index.

perf_analyzer and Model Analyzer ask for them. A key sees of the models that it may use, and of no other. Nothing is loaded or
unloaded here. Sources: Triton's "extension_model_configuration", "extension_statistics" and "extension_model_repository".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from slotwise.backends.interface import Refused
from slotwise.client.live_model import LiveModel
from slotwise.frontend.admission.key_rates import AccessKey
from slotwise.frontend.frontend import FRESH_S, Gateway
from slotwise.frontend.http import openapi
from slotwise.frontend.protocols import open_inference
from slotwise.frontend.protocols.known_model import model_input, open_models, permitted_model
from slotwise.frontend.protocols.records import ModelInput, ProtocolFault, parsed, small_body
from slotwise.frontend.traffic import Outcomes

REFUSED: dict[int | str, dict[str, Any]] = {
    403: openapi.text_failure("Not this key's model"),
    404: openapi.text_failure("No such model"),
}
UNREADABLE: dict[int | str, dict[str, Any]] = {400: openapi.text_failure("The body is no JSON object")}
INDEX_BODY = {"type": "object", "properties": {"ready": {"type": "boolean"}}}


async def config_of(gateway: Gateway, key: AccessKey | None, model: str, version: str) -> dict[str, Any]:
    """What Triton calls the model's configuration. Raises Refused (403, 404)."""
    live = await permitted_model(gateway, key, model, version)
    return config(live, model_input(gateway, model, version))


async def statistics_of(gateway: Gateway, key: AccessKey | None, model: str, version: str) -> dict[str, Any]:
    """The statistics of one model, or with "" of all those that the key may use. Raises Refused (403, 404).

    They count requests to any version, so they are the default's alone.
    """
    if model:
        lives = [await permitted_model(gateway, key, model, version)]
        if (model, version) in gateway.backend.others:
            raise Refused(404, f"statistics are those of {model}'s default version", logged="no statistics by version")
    else:
        await gateway.refresh(FRESH_S)
        lives = open_models(gateway, key)
    return {"model_stats": [statistics(live, version, gateway.traffic(live.name).outcomes) for live in lives]}


async def index_of(gateway: Gateway, key: AccessKey | None, only_ready: bool) -> list[dict[str, str]]:
    """The models that the key may use, and whether each is ready."""
    await gateway.refresh(FRESH_S)
    entries = [_entry(gateway, live) for live in open_models(gateway, key)]
    return [entry for entry in entries if entry["state"] == "READY" or not only_ready]


def config(live: LiveModel, model: ModelInput) -> dict[str, Any]:
    """A ModelConfig as JSON. max_batch_size is that of the server's batches; a request may have more records."""
    about = open_inference.metadata(live.name, [live.version], model)
    full = {"preferred_batch_size": [live.batch_size]} if live.batch_size > 1 else {}
    kind = "KIND_GPU" if live.device == "cuda" or any(worker.gpu for worker in live.workers) else "KIND_CPU"
    groups = [{"name": live.name, "kind": kind, "count": len(live.workers)}] if live.workers else []
    return {
        "name": live.name,
        "platform": about["platform"],
        "backend": "slotwise",
        "max_batch_size": live.batch_size,
        "input": [_tensor(tensor) for tensor in about["inputs"]],
        "output": [_tensor(tensor) for tensor in about["outputs"]],
        "dynamic_batching": {**full, "max_queue_delay_microseconds": round(live.max_batch_delay * 1000)},
        "instance_group": groups,
    }


def statistics(live: LiveModel, version: str, outcomes: Outcomes) -> dict[str, Any]:
    """The statistics of one model. The queue's share is all but decoding and inference, as `x-queue-ms` has it.

    Its version is a whole number, as every version is to Triton's clients, unless the request says one: perf_analyzer looks for
    its model by that number.
    """
    waited_s = max(outcomes.good_s - outcomes.decode_s - outcomes.inference_s, 0)
    seconds = {
        "success": outcomes.good_s,
        "queue": waited_s,
        "compute_input": outcomes.decode_s,
        "compute_infer": outcomes.inference_s,
        "compute_output": 0.0,
    }
    durations = {part: _duration(outcomes.good, spent_s) for part, spent_s in seconds.items()}
    none = _duration(0, 0)
    return {
        "name": live.name,
        "version": version or live.version.partition(".")[0],
        "last_inference": int(outcomes.last_s * 1000),
        "inference_count": outcomes.good,
        "execution_count": round(outcomes.batches),
        "inference_stats": {
            **durations,
            "fail": _duration(outcomes.failed, outcomes.failed_s),
            "cache_hit": none,
            "cache_miss": none,
        },
        "batch_stats": [],
    }


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * 1e9)}


def _tensor(described: dict[str, Any]) -> dict[str, Any]:
    """A tensor of the model's metadata as its configuration has it: without the batch."""
    datatype = described["datatype"]
    kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    return {"name": described["name"], "data_type": kind, "dims": described["shape"][1:]}


def _entry(gateway: Gateway, live: LiveModel) -> dict[str, str]:
    ready = gateway.model_ready(live.name)
    reason = "" if ready else live.failure or gateway.workers()[live.name]
    return {"name": live.name, "version": live.version, "state": "READY" if ready else "UNAVAILABLE", "reason": reason}


def add(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes, before that of any model's metadata: `stats` is no model."""

    async def answered(request: Request, ask: Callable[[AccessKey | None], Awaitable[Any]]) -> JSONResponse:
        try:
            return JSONResponse(await ask(request.scope.get("slotwise.key")))
        except Refused as refused:
            return JSONResponse({"error": refused.message}, refused.status)

    one, every = "Triton: a model's configuration", "Triton: what became of the requests"

    @app.get("/v2/models/stats", summary=f"{every} to every model")
    async def all_stats(request: Request) -> JSONResponse:
        return await answered(request, lambda key: statistics_of(gateway, key, "", ""))

    @app.get("/v2/models/{model}/stats", summary=f"{every} to a model", responses=REFUSED)
    async def stats(request: Request, model: str) -> JSONResponse:
        return await answered(request, lambda key: statistics_of(gateway, key, model, ""))

    @app.get("/v2/models/{model}/versions/{version}/stats", summary=f"{every} to a model", responses=REFUSED)
    async def version_stats(request: Request, model: str, version: str) -> JSONResponse:
        return await answered(request, lambda key: statistics_of(gateway, key, model, version))

    @app.get("/v2/models/{model}/config", summary=one, responses=REFUSED)
    async def model_config(request: Request, model: str) -> JSONResponse:
        return await answered(request, lambda key: config_of(gateway, key, model, ""))

    @app.get("/v2/models/{model}/versions/{version}/config", summary=one, responses=REFUSED)
    async def version_config(request: Request, model: str, version: str) -> JSONResponse:
        return await answered(request, lambda key: config_of(gateway, key, model, version))

    given = {"requestBody": {"content": {"application/json": {"schema": INDEX_BODY}}}}

    @app.post("/v2/repository/index", summary="Triton: the models, and their state", responses=UNREADABLE, openapi_extra=given)
    async def index(request: Request) -> JSONResponse:
        try:
            body = await small_body(request.stream())
            only_ready = bool(body.strip()) and parsed(body).get("ready") is True
        except ProtocolFault as fault:
            return JSONResponse({"error": fault.message}, fault.status)
        return await answered(request, lambda key: index_of(gateway, key, only_ready))
