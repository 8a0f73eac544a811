"""A model made of numpy alone, a handler on it, its pipeline, and a server's context made by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from slotwise.worker import BadRequest, BatchHandler, Headers, Pipeline, Request, Settings, SlotError, pipeline
from slotwise.worker.budget import Budget
from slotwise.worker.isolation import Isolation

POISON = -1.0  # the model raises on it
NAN = -2.0  # the model answers NaN
MUTE = -3.0  # the answer cannot be said in JSON
HUGE = -4.0  # alone it does not fit into memory
CALLS: WeakKeyDictionary[Toy, list[np.ndarray[Any, Any]]] = WeakKeyDictionary()  # beside the handlers: they are put back


class Metrics:
    """Takes what the servers' metrics take, and remembers it."""

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}

    def add_time(self, name: str, value: float) -> None:
        self.seen[name] = value

    add_percent = add_time

    def add_counter(self, name: str, value: int, dimensions: Any = None) -> None:
        self.seen[name] = value


class RawContext:
    """The part of both servers' context that is used."""

    def __init__(self, headers: Sequence[dict[str, Any]] = (), model_dir: Path | str = ".", batch_size: int = 8) -> None:
        self.system_properties = {"model_dir": str(model_dir), "batch_size": batch_size, "gpu_id": None}
        self.system_properties["limit_max_image_pixels"] = True
        self.model_name = "toy"
        self.manifest = {"model": {"modelName": "toy", "modelVersion": "1.0"}}
        self.request_ids = {i: f"id-{i}" for i in range(len(headers))}
        self.metrics = Metrics()
        self._headers = list(headers)
        self.status: dict[int, tuple[int, str]] = {}
        self.sent: dict[int, dict[str, str]] = {}

    def get_all_request_header(self, i: int) -> dict[str, Any]:
        return self._headers[i]

    def set_response_status(self, code: int, phrase: str, idx: int) -> None:
        self.status[idx] = (code, phrase)

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.set_response_header(idx, "content-type", value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        return self.sent.setdefault(idx, {})

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        self.sent.setdefault(idx, {})[key] = value


class Toy(BatchHandler):
    """A body is a JSON list of numbers (or "bad" in a record's place); each number x is a row and becomes 2x + 1."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.wanted = settings or Settings(batch_size=8)
        CALLS[self] = []
        self.capacity = 10**9
        self.broken = False
        self.pipeline: Pipeline

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return self.double

    @property
    def calls(self) -> list[np.ndarray[Any, Any]]:
        """What its model was called with, also what was asked again."""
        return CALLS[self]

    @property
    def isolation(self) -> Isolation:
        return self.pipeline.isolation

    def example(self) -> Any:
        return np.zeros(1)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        values = json.loads(body)
        if not isinstance(values, list):
            raise BadRequest("a list is wanted")
        return [BadRequest("bad record") if v == "bad" else np.array([float(v)]) for v in values]

    def double(self, inputs: np.ndarray[Any, Any]) -> Any:
        self.calls.append(inputs)
        if self.broken:
            raise RuntimeError("the device is gone")
        if len(inputs) > self.capacity or (inputs == HUGE).any():
            raise MemoryError
        if (inputs == POISON).any():
            raise ValueError("secret of another client")
        outputs = 2 * inputs + 1  # [b, 1]
        outputs[inputs == NAN] = np.nan
        return outputs

    def encode(self, output: Any, item: Any) -> Any:
        return object() if item[0] == MUTE else float(output[0])

    def respond(self, request: Any, results: list[Any]) -> tuple[Any, str]:
        return [r.body() if isinstance(r, SlotError) else r for r in results], "application/json"


def begin(handler: Any, settings: Settings, model_dir: Path = Path(".")) -> Any:
    """The handler with its pipeline, ready to be asked."""
    handler.pipeline = Pipeline.start(handler, model_dir, settings)
    return handler


class Clock:
    """The clock of the budgets, which stands still unless a test moves it: so slow is the model, whatever the machine does."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic()
        patch.setattr(pipeline, "Budget", partial(Budget, clock=self))
        patch.setattr(pipeline, "Isolation", partial(Isolation, clock=self))
        patch.setattr(BatchHandler, "leaves_for_later", lambda _: False)  # a handler that moves the clock moves everybody's

    def __call__(self) -> float:
        return self.now


def started(handler: Toy | None = None, **settings: Any) -> Toy:
    """A toy that is ready to serve."""
    handler = handler or Toy(Settings(**{"batch_size": 8, **settings}))
    begin(handler, handler.wanted)
    handler.calls.clear()
    return handler


def request(i: int, body: Any, headers: dict[str, str] | None = None, **more: Any) -> Request:
    """One request as a host makes it. A body that is not bytes is sent as JSON."""
    known = Headers(headers)
    until = float(known["x-deadline-ms"]) / 1000 if "x-deadline-ms" in known else None
    return Request(body if isinstance(body, bytes) else json.dumps(body).encode(), known, f"id-{i}", until, **more)


def ask(handler: Any, bodies: Iterable[Any], headers: dict[int, dict[str, str]] | None = None) -> list[Any]:
    """Send one batch; each answer with .code, .value (parsed), .headers. A body that is not bytes is sent as JSON."""
    requests = [request(i, body, (headers or {}).get(i)) for i, body in enumerate(bodies)]
    batch = handler.pipeline.run(requests)
    assert len(batch.answers) == len(requests)
    assert all(type(answer.body) is bytes for answer in batch.answers)
    return [
        SimpleNamespace(
            code=answer.status, value=json_of(answer.body), headers=answer.headers, body=answer.body, answer=answer, batch=batch
        )
        for answer in batch.answers
    ]


def json_of(body: bytes) -> Any:
    """A body's JSON; None where it is none."""
    try:
        return json.loads(body)
    except ValueError:
        return None


def expected(body: Any) -> tuple[int, Any]:
    """What the toy owes to a client who sent this body, whoever shares the batch."""
    if not isinstance(body, list):
        return 400, None
    return 200, [_record(value) for value in body]


def _record(value: Any) -> float | int:
    codes = {"bad": 400, POISON: 500, NAN: 500, MUTE: 500, HUGE: 507}
    return codes[value] if value in codes else 2.0 * value + 1.0


def shown(answer: Any) -> tuple[int, Any]:
    """An answer in the form of `expected`: errors of records as their codes."""
    if answer.code != 200:
        return answer.code, None
    return 200, [r["error"]["code"] if isinstance(r, dict) else r for r in answer.value]


class Doubler(BatchHandler):
    """As in docs/own-model.md: the least that a handler needs."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return lambda inputs: 2 * inputs

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [np.float32(body.decode())]
