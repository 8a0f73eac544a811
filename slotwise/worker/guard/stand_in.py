"""Stand in for TorchServe's context where there is no TorchServe: on Ray, on Triton, in a process of its own.

It has what a stranger's handler may ask and set: slots, ids, headers, statuses, metrics, system properties. Where theirs
imports `ts`, the package serves as a library; no server is started.
"""

from __future__ import annotations

import importlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

from slotwise.worker.guard.stand_in_metrics import StandInMetrics

REGISTERED_AS = "SLOTWISE_REGISTERED_AS"  # a variable of the worker's, where its host knows what the model is called there
SEQUENCE = ("ID", "START", "END")  # of the names of headers that are about one


def new_id() -> str:
    """An id that no other request has, as TorchServe gives each: theirs may keep by it what is one client's."""
    return str(uuid.uuid4())


class AnyCase(dict[str, str]):
    """Request headers in lower case, found in any: hosts differ in what they make of a name."""

    def __init__(self, headers: Any) -> None:
        super().__init__({str(name).lower(): value for name, value in dict(headers).items()})

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a header, or `default`."""
        return super().get(name.lower(), default)


class StandInSlot:
    """One request's headers, and the status and headers of its answer. Its attributes have TorchServe's names."""

    def __init__(self, request_header: Any) -> None:
        self._request_header = AnyCase(request_header)
        self._response_header: dict[str, str] = {}
        self._status_code: Any = 200
        self._reason_phrase: Any = None

    def get_request_property(self, key: str) -> Any:
        """One header of the request, or None."""
        return self._request_header.get(key)

    def get_request_properties(self) -> dict[str, str]:
        """All headers of the request."""
        return self._request_header

    def report_status(self, code: Any, reason_phrase: Any = None) -> None:
        """Set the status."""
        self._status_code, self._reason_phrase = code, reason_phrase

    def get_response_status_code(self) -> Any:
        """The status."""
        return self._status_code

    def get_response_status_phrase(self) -> Any:
        """The status line's reason."""
        return self._reason_phrase

    def add_response_property(self, key: str, value: Any) -> None:
        """Set a header."""
        self._response_header[key] = value

    def get_response_headers(self) -> dict[str, str]:
        """All headers of the answer."""
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        """One header of the answer."""
        return self._response_header.get(key)


class StandInContext:
    """One worker's context; it stays the same from batch to batch. manifest: the archive's; None: it is read.

    Its attributes have TorchServe's names: many handlers use these (`context._system_properties`).
    """

    def __init__(self, model_dir: Path, batch_size: int, manifest: dict[str, Any] | None = None) -> None:
        read = manifest if manifest is not None else json.loads((model_dir / "MAR-INF" / "MANIFEST.json").read_text("utf-8"))
        self.manifest: dict[str, Any] = read
        model = self.manifest["model"]
        self.model_name = os.environ.get(REGISTERED_AS) or str(model.get("modelName") or "model")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self._limit_max_image_pixels = True
        self._system_properties = {
            "model_dir": str(model_dir),
            "gpu_id": 0 if visible not in ("", "-1") else None,  # the first of those that the host gave this process
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": "0.12.0",
            "limit_max_image_pixels": os.environ.get("TS_LIMIT_MAX_IMAGE_PIXELS", "true").lower() == "true",
        }
        self.model_yaml_config = _yaml(model_dir / str(model["configFile"])) if model.get("configFile") else {}
        self._metrics = StandInMetrics()
        self.request_ids: dict[int, Any] = {}
        self._request_processor: list[StandInSlot] = []
        self.stopping_criteria = None
        named = (os.environ.get(f"TS_REQUEST_SEQUENCE_{one}", f"ts_request_sequence_{one.lower()}") for one in SEQUENCE)
        self.header_key_sequence_id, self.header_key_sequence_start, self.header_key_sequence_end = named

    @property
    def system_properties(self) -> dict[str, Any]:
        """What the worker was started with."""
        return self._system_properties

    @property
    def metrics(self) -> StandInMetrics:
        """What takes theirs' numbers."""
        return self._metrics

    @metrics.setter
    def metrics(self, metrics: StandInMetrics) -> None:
        self._metrics = metrics

    @property
    def request_processor(self) -> list[StandInSlot]:
        """The requests of the batch."""
        return self._request_processor

    @request_processor.setter
    def request_processor(self, request_processor: list[StandInSlot]) -> None:
        self._request_processor = request_processor

    def get_request_id(self, idx: int = 0) -> Any:
        """The id of a request."""
        return self.request_ids.get(idx)

    def get_sequence_id(self, idx: int) -> Any:
        """The id of a request's sequence, or None."""
        return self.get_request_header(idx, self.header_key_sequence_id)

    def get_request_header(self, idx: int, key: str) -> Any:
        """One header of a request, or None."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, str]:
        """All headers of a request."""
        return self.request_processor[idx].get_request_properties()

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set an answer's content type."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """An answer's content type."""
        return self.get_response_headers(idx).get("content-type")

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set an answer's status."""
        self.request_processor[idx].report_status(code, phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of every answer."""
        for slot in self.request_processor:
            slot.report_status(code, phrase)

    def get_response_status(self, idx: int) -> tuple[Any, Any]:
        """An answer's status and its reason."""
        slot = self.request_processor[idx]
        return slot.get_response_status_code(), slot.get_response_status_phrase()

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """An answer's headers."""
        return self.request_processor[idx].get_response_headers()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set one header of an answer."""
        self.request_processor[idx].add_response_property(key, value)


def _yaml(file: Path) -> Any:
    return importlib.import_module("yaml").safe_load(file.read_text("utf-8")) or {}
