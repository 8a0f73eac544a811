"""A stand-in for triton_python_backend_utils: as much of it as a host calls. tests/server/test_triton.py has the real one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


class TritonModelException(Exception):
    """What fails the loading of a model."""


class Tensor:
    """A tensor that is only reached as DLPack."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.array = name, array

    @classmethod
    def from_dlpack(cls, name: str, capsule: Any) -> Tensor:
        class Taken:
            def __dlpack__(self, **_: Any) -> Any:
                return capsule

            def __dlpack_device__(self) -> tuple[int, int]:
                return (1, 0)

        return cls(name, np.from_dlpack(Taken()).copy())

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class InferenceRequest:
    """One request of a batch. bodies: more than one where a client sends a batch of its own."""

    def __init__(self, *bodies: bytes, headers: Mapping[str, str] | bytes | None = None, id_: str = "") -> None:
        self.id = id_
        self.tensors = {"BODY": np.array([list(body) for body in bodies], np.uint8).reshape(len(bodies), -1)}
        if headers is not None:
            text = headers if isinstance(headers, bytes) else json.dumps(headers).encode()
            self.tensors["HEADERS"] = np.frombuffer(bytearray(text), np.uint8)[None]

    def request_id(self) -> str:
        return self.id


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return Tensor(name, request.tensors[name]) if name in request.tensors else None


class TritonError:
    """An error of one response."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int) -> None:
        self.message, self.code = message, code


class InferenceResponse:
    """One response: tensors or an error."""

    def __init__(self, output_tensors: list[Tensor], error: TritonError | None = None) -> None:
        self.outputs = {tensor.name: tensor.array for tensor in output_tensors}
        self.error = error

    def told(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        if self.error:
            slot = json.loads(self.error.message)
            return slot["status"], slot["headers"], slot["body"].encode()
        headers = json.loads(self.outputs["HEADERS"].tobytes())
        return int(self.outputs["STATUS"][0, 0]), headers, self.outputs["ANSWER"].tobytes()


class MetricFamily:
    """A metric by labels; `values` holds them all."""

    COUNTER, GAUGE = range(2)
    values: dict[tuple[str, str], float]

    def __init__(self, name: str, description: str, kind: int) -> None:
        self.name, self.kind = name, kind

    def Metric(self, labels: Mapping[str, str]) -> Metric:
        return Metric(self.name, labels.get("Code", ""))


class Metric:
    """One number."""

    def __init__(self, name: str, code: str) -> None:
        self.key = (name, code)

    def set(self, value: float) -> None:
        NUMBERS[self.key] = value

    def increment(self, value: float) -> None:
        NUMBERS[self.key] = NUMBERS.get(self.key, 0) + value


NUMBERS: dict[tuple[str, str], float] = {}


def arguments(folder: Path, batch_size: int = 8, **parameters: str) -> dict[str, str]:
    """What Triton gives `initialize`."""
    given = {key: {"string_value": value} for key, value in parameters.items()}
    config = {"max_batch_size": batch_size, "parameters": given}
    return {
        "model_name": "faults",
        "model_instance_name": "faults_0_0",
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        "model_repository": str(folder),
        "model_version": "1",
        "model_config": json.dumps(config),
    }
