"""What the management API says of a model, in TorchServe's form, and of itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from slotwise import __version__
from slotwise.backends.management.models import HostedModel, HostedWorker, Observation

UNSET = {  # settings of TorchServe's as a model has them there that does not set them: where a host does not say otherwise
    "maxRetryTimeoutInSec": 300,
    "clientTimeoutInMills": 0,
    "parallelType": "",
    "parallelLevel": 0,
    "continuousBatching": False,
    "useJobTicket": False,
    "useVenv": False,
    "stateful": False,
    "sequenceMaxIdleMSec": 0,
    "sequenceTimeoutMSec": 0,
    "maxNumSequence": 0,
    "maxSequenceJobQueueSize": 0,
}
REGISTRATION = (
    "url",
    "model_name",
    "runtime",
    "batch_size",
    "max_batch_delay",
    "response_timeout",
    "startup_timeout",
    "initial_workers",
    "synchronous",
)
CALLS = (
    ("/", "options", "Get this description.", ()),
    ("/ping", "get", "Whether the server runs.", ()),
    ("/models", "get", "List the models.", ("limit", "next_page_token")),
    ("/models", "post", "Register an archive of the model store.", REGISTRATION),
    ("/models/{model_name}", "get", "Describe a model's default version.", ()),
    ("/models/{model_name}", "put", "Set its number of workers.", ("min_worker", "max_worker", "synchronous")),
    ("/models/{model_name}", "delete", "Unregister it.", ()),
    ("/models/{model_name}/{model_version}", "get", "Describe a version, or all of them (`all`).", ()),
    ("/models/{model_name}/{model_version}", "put", "Set its number of workers.", ("min_worker", "max_worker", "synchronous")),
    ("/models/{model_name}/{model_version}", "delete", "Unregister it.", ()),
    ("/models/{model_name}/{model_version}/set-default", "put", "Make it the default version.", ()),
    ("/token", "get", "Make a new token, which key_file.json has then.", ("type",)),
)


def described(model: HostedModel, seen: Observation) -> dict[str, Any]:
    """One version as TorchServe describes it; `got`, `node`, `failure` and `batchCost` are ours."""
    room = max(0, model.profile.job_queue_size - seen.waiting)
    return {
        "modelName": model.name,
        "modelVersion": model.version,
        "modelUrl": model.archive,
        "runtime": "python",
        "minWorkers": model.min_workers,
        "maxWorkers": model.max_workers,
        "batchSize": model.batch_size,
        "maxBatchDelay": model.max_batch_delay_ms,
        "responseTimeout": model.response_timeout_s,
        "startupTimeout": model.startup_timeout_s,
        "deviceType": "gpu" if model.profile.device == "cuda" else "cpu",
        **UNSET,
        **seen.settings,
        "loadedAtStartup": model.at_start,
        "workers": [_worker(worker) for worker in seen.workers],
        "jobQueueStatus": {"remainingCapacity": room, "pendingRequests": seen.waiting},
        "failure": seen.failure,
        **({"batchCost": dict(seen.batch_cost)} if seen.batch_cost else {}),
    }


def _worker(worker: HostedWorker) -> dict[str, Any]:
    started = datetime.fromtimestamp(worker.started_at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "id": worker.id,
        "startTime": started if worker.started_at else "",
        "status": worker.status,
        "memoryUsage": worker.memory_bytes,
        "pid": worker.pid,
        "gpu": worker.gpu,
        "gpuUsage": "N/A",
        "got": dict(worker.got),
        "node": worker.node,
    }


def _operation(path: str, method: str, summary: str, query: tuple[str, ...]) -> dict[str, Any]:
    named = [part.strip("{}") for part in path.split("/") if part.startswith("{")]
    places = [(name, "path") for name in named] + [(name, "query") for name in query]
    return {
        "summary": summary,
        "operationId": f"{method}{path.title().replace('/', '').replace('{', '').replace('}', '')}",
        "parameters": [
            {"in": place, "name": name, "required": place == "path", "schema": {"type": "string"}} for name, place in places
        ],
        "responses": {"200": {"description": "Done"}, "default": {"description": "Refused: code, type, message"}},
    }


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for path, method, summary, query in CALLS:
        paths.setdefault(path, {})[method] = _operation(path, method, summary, query)
    return paths


DESCRIPTION = {
    "openapi": "3.0.1",
    "info": {"title": "Slotwise's management API, which is TorchServe's", "version": __version__},
    "paths": _paths(),
}
