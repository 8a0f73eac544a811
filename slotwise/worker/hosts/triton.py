"""Serve an archive in Triton's python backend.

    BODY [1, bytes], HEADERS [1, bytes of a JSON object] (may be left out)
        -> ANSWER [1, bytes], STATUS [1, 1], HEADERS [1, bytes of a JSON object]

A request that is refused gets a TritonError, whose message is a JSON object with the answer's status, headers and body.

The model repository's model.py calls this in the process that Triton gives a model. Triton never starts that process again, so
the handler runs in a child of it, which can be replaced (replaced_worker.py).

Bytes are UINT8, and cross as DLPack. The python backend that nvidia-pytriton carries was built for numpy 1: under numpy 2
it reads and writes arrays with a wrong item size, also those of strings.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker.hosts.child import START_TIMEOUT_S, WorkerDied, WorkerFailed
from slotwise.worker.hosts.messages import ChildAnswer
from slotwise.worker.hosts.replaced_worker import ReplacedWorker
from slotwise.worker.slot_errors import BadRequest, SlotError

logger = logging.getLogger(__name__)

LINES = frozenset("\r\n\0")  # what no header of HTTP has in it: the log would have the next line as its own
JSON = {"content-type": "application/json"}
CODES = {404: "NOT_FOUND", 409: "ALREADY_EXISTS", 501: "UNSUPPORTED", 503: "UNAVAILABLE", 504: "UNAVAILABLE"}


class TritonHost:
    """One instance of a model. backend: triton_python_backend_utils. arguments: what Triton gives `initialize`."""

    def __init__(self, backend: Any, arguments: Mapping[str, str], model_dir: Path) -> None:
        self.backend = backend
        model, state = arguments["model_name"], os.environ.get("SLOTWISE_STATE")
        name = f"{arguments['model_instance_name']}.{os.getpid()}"
        self.file = Path(state, "instances", model, name) if state else None
        config = json.loads(arguments["model_config"])
        given = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self.metrics = Metrics(backend, model)
        self.worker = ReplacedWorker(
            model_dir,
            max(1, int(config.get("max_batch_size", 1))),
            float(given.get("response_timeout_s", 0)),
            environment(arguments, given),
            self._report,
            float(given.get("start_timeout_s", START_TIMEOUT_S)),
        )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer one batch: exactly one response a request, in order. Raises nothing."""
        responses: list[Any] = [None] * len(requests)
        entries, bodies, slots = [], [], []
        for i, request in enumerate(requests):
            try:
                headers, body = self._read(request)
            except SlotError as error:
                responses[i] = self._refusal(error.code, JSON, json.dumps(error.body()).encode())
                continue
            slots.append(i)
            entries.append({"headers": headers, "bytes": len(body)})
            bodies.append(body)
        for i, response in zip(slots, self._answers(entries, bodies) if slots else [], strict=True):
            responses[i] = response
        return responses

    def close(self) -> None:
        """End the child."""
        self.worker.close()
        if self.file is not None:
            self.file.unlink(missing_ok=True)

    def _answers(self, entries: list[dict[str, Any]], bodies: list[bytes]) -> list[Any]:
        try:
            reply = self.worker.answer({"requests": entries}, bodies)
        except WorkerDied as died:  # as TorchServe answers then
            return [self._failure(died.status, str(died)) for _ in entries]
        except WorkerFailed as error:
            logger.error("a batch was not answered: %s", error)
            return [self._failure(500, "the worker could not answer this batch") for _ in entries]
        for name, value, unit, code in reply.metrics:
            self.metrics.add(name, value, unit, code)
        return [self._response(answer) for answer in reply.answers]

    def _read(self, request: Any) -> tuple[dict[str, str], bytes]:
        """The headers and the body of one request."""
        body = self._input(request, "BODY")
        text = self._input(request, "HEADERS")
        try:
            headers = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            headers = None
        if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
            raise BadRequest("HEADERS must be a JSON object, each header a text")
        kept = {name.lower(): value for name, value in headers.items()}
        if request.request_id():
            kept.setdefault("x-request-id", request.request_id())
        if any(LINES.intersection(one) for one in chain(*kept.items())):
            raise BadRequest("a header, and a request's id, is one line")
        return kept, body or b""

    def _input(self, request: Any, name: str) -> bytes | None:
        tensor = self.backend.get_input_tensor_by_name(request, name)
        if tensor is None:
            return None
        array = np.from_dlpack(tensor)
        if array.ndim > 1 and array.shape[0] != 1:
            raise BadRequest(f"{name} must be [1, bytes]: a request carries one body, and Triton makes the batches")
        return array.tobytes()

    def _response(self, answer: ChildAnswer) -> Any:
        headers = {"content-type": answer.content_type, **answer.headers}
        if answer.status >= 400:
            return self._refusal(answer.status, headers, answer.body)
        tensors = [
            self._tensor("ANSWER", np.frombuffer(bytearray(answer.body), np.uint8)[None]),
            self._tensor("STATUS", np.array([[answer.status]], np.int32)),
            self._tensor("HEADERS", np.frombuffer(bytearray(json.dumps(headers).encode()), np.uint8)[None]),
        ]
        return self.backend.InferenceResponse(output_tensors=tensors)

    def _refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> Any:
        message = json.dumps({"status": status, "headers": dict(headers), "body": body.decode("utf-8", "replace")})
        error = self.backend.TritonError
        code = CODES.get(status) or ("INVALID_ARG" if status < 500 else "INTERNAL")
        return self.backend.InferenceResponse(output_tensors=[], error=error(message, getattr(error, code)))

    def _failure(self, status: int, message: str) -> Any:
        kind = "InternalServerException" if status == 500 else "ServiceUnavailableException"
        return self._refusal(status, JSON, json.dumps({"code": status, "type": kind, "message": message}).encode())

    def _tensor(self, name: str, array: Any) -> Any:
        capsule = array.__dlpack__()
        tensor = self.backend.Tensor.from_dlpack(name, capsule)
        # The backend renames what it has taken, but not to the name by which numpy knows that it is taken.
        ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), b"used_dltensor")
        return tensor

    def _report(self, pid: int) -> None:
        """Say which process answers for this instance, for `slotwise describe`."""
        if self.file is not None:
            with contextlib.suppress(OSError):
                self.file.parent.mkdir(parents=True, exist_ok=True)
                self.file.write_text(str(pid), "ascii")


def environment(arguments: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The environment of the child: what the server has, else what config.pbtxt says; a GPU where Triton assigned one."""
    environ = {name: value for name, value in given.items() if name.startswith("SLOTWISE_")} | dict(os.environ)
    if arguments.get("model_instance_kind") == "GPU":
        device = int(arguments.get("model_instance_device_id", 0))
        visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        environ["CUDA_VISIBLE_DEVICES"] = visible[device] if device < len(visible) else str(device)
    return environ


class Metrics:
    """The worker's numbers as metrics of Triton, with the names that TorchServe gives them."""

    def __init__(self, backend: Any, model: str) -> None:
        self.backend, self.model = backend, model
        self.families: dict[str, Any] = {}
        self.metrics: dict[tuple[str, int | None], Any] = {}

    def add(self, name: str, value: float, unit: str = "", code: int | None = None) -> None:
        """Take one number. unit: "ms" or "%" (the last value holds), or "" (a count)."""
        try:
            metric = self.metrics.get((name, code))
            if metric is None:
                metric = self.metrics[name, code] = self._new(name, unit, code)
            metric.set(value) if unit else metric.increment(value)
        except Exception:
            logger.debug("metric %s was refused", name, exc_info=True)

    def _new(self, name: str, unit: str, code: int | None) -> Any:
        kinds = self.backend.MetricFamily
        if name not in self.families:
            kind = kinds.GAUGE if unit else kinds.COUNTER
            self.families[name] = kinds(name=name, description=f"{name} of Slotwise", kind=kind)
        labels = {"ModelName": self.model, "Level": "Model"} | ({} if code is None else {"Code": str(code)})
        return self.families[name].Metric(labels=labels)
