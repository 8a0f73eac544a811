"""Adapt the context that TorchServe or MMS passes to a handler: read requests from it, and put answers into it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotwise.worker.answer import Answer
from slotwise.worker.request import Headers

logger = logging.getLogger(__name__)

PACKAGES = {"torchserve": "ts", "mms": "mms"}  # what each server's Python package is called


class ServerContext:
    """The context of one call. i is a slot's number in the batch, 0 <= i < n."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    @property
    def server(self) -> str:
        """ "torchserve" or "mms"; both say that their server_name is "MMS"."""
        return "torchserve" if "limit_max_image_pixels" in self.raw.system_properties else "mms"

    @property
    def batch_size(self) -> int:
        """The most requests of one batch, as set at registration."""
        return int(self.raw.system_properties.get("batch_size") or 1)

    @property
    def gpu_id(self) -> int | None:
        """The GPU that the server assigned to this worker; None without one."""
        gpu = self.raw.system_properties.get("gpu_id")
        return int(gpu) if gpu is not None and int(gpu) >= 0 else None

    @property
    def model_name(self) -> str:
        """The model's name, as registered."""
        return str(self.raw.model_name or self._manifest.get("modelName") or "model")

    @property
    def model_version(self) -> str:
        """The archive's version."""
        return str(self._manifest.get("modelVersion") or "")

    @property
    def model_dir(self) -> Path:
        """Where the server unpacked the archive."""
        return Path(self.raw.system_properties.get("model_dir") or ".")

    @property
    def _manifest(self) -> Mapping[str, Any]:
        manifest: Mapping[str, Any] = (self.raw.manifest or {}).get("model", {})
        return manifest

    def request_id(self, i: int, headers: Headers) -> str:
        """The id of the request in slot i: its x-request-id header (the gateway sets it), else the server's own."""
        return headers.get("x-request-id") or str((self.raw.request_ids or {}).get(i, ""))

    def headers(self, i: int) -> Headers:
        """The headers of the request in slot i."""
        return Headers(self.raw.get_all_request_header(i))

    def answer(self, i: int, answer: Answer) -> None:
        """Set the status line and the headers of slot i.

        Both servers send the number of characters as a field's length in bytes. That is right here, because an Answer's headers
        are ASCII.
        """
        self.raw.set_response_status(code=answer.status, phrase=answer.phrase, idx=i)
        self.raw.set_response_content_type(i, answer.content_type)
        self.raw.get_response_headers(i).update(answer.headers)

    def metric(self, name: str, value: float, unit: str = "", code: int | None = None) -> None:
        """Report one number through the server's own metrics. Where the server refuses it, every request is still answered.

        unit: "ms", "%" or "" (a count). code: an HTTP status, as the dimension "Code" of a count.
        """
        metrics = self.raw.metrics
        if metrics is None:
            return
        try:
            if unit == "ms":
                metrics.add_time(name, round(value, 3))
            elif unit == "%":
                metrics.add_percent(name, round(value, 2))
            else:
                metrics.add_counter(name, int(value), dimensions=self._dimensions(code))
        except Exception:
            logger.debug("metric %s was refused", name, exc_info=True)

    def metric_between(self, name: str, value: float) -> None:
        """Report a count between two batches, where MMS would print it no more: it has printed the last batch's."""
        store = getattr(self.raw.metrics, "store", None) if self.server == "mms" else None
        if store is None:
            self.metric(name, value)
            return
        store.clear()
        self.raw.metrics.cache.clear()
        self.metric(name, value)
        importlib.import_module("mms.service").emit_metrics(store)
        store.clear()

    def _dimensions(self, code: int | None) -> list[Any]:
        if code is None:
            return []  # TorchServe takes no None here, and adds to the list
        return [importlib.import_module(f"{PACKAGES[self.server]}.metrics.dimension").Dimension("Code", str(code))]
