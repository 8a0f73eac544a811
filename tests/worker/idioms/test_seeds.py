"""Handlers that draw by chance: with a seed of the process, or with generators of their own."""

from __future__ import annotations

import importlib
import random
from typing import Any

import numpy as np
import pytest

from tests.worker.idioms.asked import apart, each_of, no_answer_is_wrong, together
from tests.worker.idioms.sets import SEEDS, Sets

torch = pytest.importorskip("torch")


@apart(SEEDS)
class ASeedOfEach(Sets):
    """Seeds all generators with the request's seed, as `seed_everything` does, and draws in inference."""

    def put(self, wanted: int) -> None:
        random.seed(wanted)
        np.random.seed(wanted)
        torch.manual_seed(wanted)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return [x + random.random() + np.random.rand() + float(torch.rand(())) for x in data]

    def seen(self, data: Any) -> Any:
        return data


@apart(SEEDS)
class OneSeedInAFork(Sets):
    """Draws one seed's numbers within `fork_rng`, so that a row alone always has the first of them."""

    def put(self, wanted: int) -> None:
        pass

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.random.fork_rng():
            torch.random.manual_seed(1)
            return (torch.tensor(data) + torch.randn(len(data))).tolist()

    def seen(self, data: Any) -> Any:
        return data


@apart(SEEDS)
class ASeedByAFunction(Sets):
    """Seeds what a library's function gives, as deepspeed's `get_accelerator` does."""

    def put(self, wanted: int) -> None:
        importlib.import_module("torch").manual_seed(wanted)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return [x + float(torch.rand(())) for x in data]

    def seen(self, data: Any) -> Any:
        return data


@together(SEEDS)
class AGeneratorOfEach(Sets):
    """Has a generator of its own for each request, and draws where it is read."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        generator = torch.Generator().manual_seed(data[0]["body"]["set"])
        return torch.rand(1, 2, generator=generator)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return data * self.scale

    def postprocess(self, data: Any) -> Any:
        return data.tolist()


@each_of(__name__)
def test_no_answer_is_wrong(kind: type[Sets], rows_at_once: list[int]) -> None:
    no_answer_is_wrong(kind, rows_at_once)
