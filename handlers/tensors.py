"""Answer named tensors with named tensors: all inputs of an ONNX graph in, all its outputs out, each under its own name.

A record is `{"user": [...], "item": [...]}`, its answer `{"scores": [...], "features": [...]}`. Over V2 they are tensors, one
to one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker import BatchHandler, Headers, Request, Settings, SlotError
from slotwise.worker.engines import samples
from slotwise.worker.labels import decimals
from slotwise.worker.tensors.named_engine import load_named
from slotwise.worker.tensors.tensor_body import Item, is_list_of_records, records_of, tensors_of


class Tensors(BatchHandler):
    """A record is an item: an array for each of the graph's inputs."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.inputs = tensors_of(self.model["options"]["tensors"]["inputs"])
        self.first = next(samples.examples(model_dir, self), {one.name: np.zeros(one.shape, one.dtype) for one in self.inputs})
        return load_named(model_dir, settings)

    def example(self) -> Any:
        return self.first

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return list(records_of(body, headers, self.inputs))

    def collate(self, items: list[Item]) -> Item:
        return {one.name: np.stack([item[one.name] for item in items]) for one in self.inputs}

    def encode(self, output: Any, item: Any) -> Any:
        return {name: _listed(np.asarray(value)) for name, value in output.items()}

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        """A list of records is answered by a list, however many they are; where its only one is wrong, by that error."""
        if len(results) == 1 and not isinstance(results[0], SlotError) and is_list_of_records(request.body, self.inputs):
            return results, "application/json"
        return super().respond(request, results)


def _listed(array: Any) -> Any:
    """Nested lists of its numbers."""
    return array.tolist() if array.dtype.kind != "f" else np.array(decimals(array)).reshape(array.shape).tolist()


handle = Tensors.entry_point()
