"""The profile `deterministic`: one request gets the same bytes, whoever shares its batch, whatever happens to them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.worker import BatchHandler, Headers, Pipeline, Request, Settings
from slotwise.worker.padding import Padding
from slotwise.worker.separability.same_bytes import padded
from slotwise.worker.separability.verdict import Verdict

POISON = 1e9
ROW = np.arange(4, dtype=np.float32)


class Serving(BatchHandler):
    """Serves any callable on rows of four numbers. shapes: the batch sizes that it was called with."""

    def __init__(self, network: Callable[[Any], Any]) -> None:
        self.network, self.shapes = network, set[int]()
        self.counting = False

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return self.run

    def run(self, x: Any) -> Any:
        if self.counting and (x != 1).any():  # not the warm-up input
            self.shapes.add(len(x))
        if (x == POISON).any():
            raise ValueError("poison")
        return self.network(x)

    def example(self) -> Any:
        return np.ones(4, np.float32)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [np.frombuffer(body, np.float32)]


def start(network: Callable[[Any], Any], handler: type[Serving] = Serving, batch_size: int = 8) -> Pipeline:
    settings = Settings(batch_size=batch_size, deterministic=True, proof_s=60.0)
    pipeline = Pipeline.start(handler(network), Path("nowhere"), settings)
    pipeline.handler.counting = True  # type: ignore[attr-defined]
    return pipeline


def ask(pipeline: Pipeline, rows: list[Any]) -> list[bytes]:
    answers = pipeline.answer([Request(row.astype(np.float32).tobytes(), Headers(), str(i)) for i, row in enumerate(rows)])
    assert [answer.status for answer in answers] == [500 if (row == POISON).any() else 200 for row in rows]
    return [answer.body for answer in answers]


def always_the_same(pipeline: Pipeline) -> None:
    """Alone, first, last, in the middle, and beside one that makes the model fail."""
    (expected,) = ask(pipeline, [ROW])
    loud, poison = 50 * ROW + 1, np.full(4, POISON)
    for size in range(2, 9):
        for place in {0, size // 2, size - 1}:
            for mate in (ROW, loud, poison):
                rows = [mate] * size
                rows[place] = ROW
                assert ask(pipeline, rows)[place] == expected


def by_shape(x: Any) -> Any:
    """Rounds otherwise in every shape, as kernels do."""
    return x * np.float32(1 + 1e-6 * len(x))


def by_place(x: Any) -> Any:
    """The same, and where rows cannot be shared evenly by four threads, otherwise at the last places, too."""
    rows = by_shape(x)
    if len(x) % 4:
        rows[len(x) // 4 * 4 :] *= np.float32(1 + 1e-6)
    return rows


def test_where_every_batch_gives_the_same_bits_it_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        pipeline = start(lambda x: 2 * x)
    assert pipeline.padding == Padding("none", 8)
    assert "a row has the same bits in every batch: that costs nothing" in caplog.text
    always_the_same(pipeline)
    assert {1, 5, 8} <= pipeline.handler.shapes  # type: ignore[attr-defined]


@pytest.mark.parametrize("network", [by_shape, by_place])
def test_where_shapes_differ_every_batch_has_one_shape(network: Callable[[Any], Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        pipeline = start(network)
    assert pipeline.padding == Padding("fixed", 8)
    assert "every batch is padded to 8 rows" in caplog.text
    always_the_same(pipeline)
    assert pipeline.handler.shapes == {8}, "also where rows were isolated"  # type: ignore[attr-defined]


def test_one_row_that_hides_the_bits_is_not_believed() -> None:
    """A network that is cut at 1: of the example nobody sees how it was rounded."""
    pipeline = start(lambda x: np.minimum(by_shape(np.abs(x)), 0.3))
    assert pipeline.padding == Padding("fixed", 8)


def test_a_size_whose_places_are_uneven_is_not_taken() -> None:
    pipeline = start(by_place, batch_size=7)
    assert pipeline.padding == Padding("fixed", 4)


def test_what_mixes_rows_runs_alone(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = start(lambda x: x - x.max())
    assert pipeline.padding == Padding("none", 1)
    assert "at most 1 rows run at once, so that their bits are the same: mixes rows" in caplog.text
    always_the_same(pipeline)


def test_where_only_a_text_is_seen_rows_run_alone() -> None:
    """The text may be the same although the numbers behind it are not."""

    class Words(Serving):
        def predict(self, inputs: Any) -> Any:
            return [f"{row.sum():.1f}" for row in super().predict(inputs)]

    pipeline = start(by_shape, Words)
    assert pipeline.padding == Padding("none", 1)
    always_the_same(pipeline)


def test_an_engine_that_is_not_deterministic_is_refused() -> None:
    chance = np.random.default_rng(0)
    with pytest.raises(ValueError, match="cannot give the same bytes always: not deterministic"):
        start(lambda x: x + chance.standard_normal())


def test_a_start_that_has_no_time_to_try_runs_rows_alone() -> None:
    verdict = Verdict(None, "there was no time for batches of 3", 2, (2,))
    assert padded(verdict, Padding("none", 8), deterministic=True) == Padding("none", 1)
    assert padded(verdict, Padding("none", 8)) == Padding("none", 2)


def test_one_shape_that_does_not_fit_into_memory_costs_only_who_needs_it() -> None:
    def hungry(x: Any) -> Any:
        if (x == 7).any():
            raise MemoryError
        return by_shape(x)

    pipeline = start(hungry)
    (expected,) = ask(pipeline, [ROW])
    bodies = [row.astype(np.float32).tobytes() for row in (ROW, np.full(4, 7), ROW, ROW)]
    answers = pipeline.answer([Request(body, Headers(), str(i)) for i, body in enumerate(bodies)])
    assert [answer.status for answer in answers] == [200, 507, 200, 200]
    assert {answer.body for answer in answers if answer.status == 200} == {expected}
    assert pipeline.handler.shapes == {8}  # type: ignore[attr-defined]
