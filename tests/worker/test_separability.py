"""Separability: which networks keep their rows apart, to the bit, and what is said of those that do not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from slotwise.worker import BatchHandler, Headers, Settings
from slotwise.worker.padding import pad_sequences
from slotwise.worker.separability.about import About
from slotwise.worker.separability.bits import Deviation, bits
from slotwise.worker.separability.mates import company
from slotwise.worker.separability.proof import caller, settled
from slotwise.worker.separability.two_batches import PADDING, PADDING_ROUNDED, prove
from slotwise.worker.separability.verdict import Verdict

SIZES = (2, 3, 4, 8, 16)


class Serving(BatchHandler):
    """Serves any callable on items like `item`."""

    def __init__(self, network: Callable[[Any], Any], item: Any = None) -> None:
        self.settings, self.engine = Settings(batch_size=8, proof_s=5.0), network
        self.item = np.zeros(6, np.float32) if item is None else item

    def example(self) -> Any:
        return self.item

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [np.frombuffer(body, np.float32)]


def verdict(handler: BatchHandler, sizes: tuple[int, ...] = SIZES, folder: Path = Path("nowhere"), **options: Any) -> Verdict:
    whole = company(folder, handler)
    assert whole is not None
    attempt = caller(handler)
    return prove(attempt, whole.row, whole.mates, sizes, longest=whole.longest, **options)


def proof(handler: BatchHandler, folder: Path = Path("nowhere")) -> Verdict:
    return settled(handler, caller(handler), folder)


def weights(rows: int = 6, columns: int = 3) -> Any:
    return np.random.default_rng(5).standard_normal((rows, columns)).astype(np.float32)


def row_wise(x: Any) -> Any:
    """A layer whose rows are computed one after the other: nothing can touch another, and every shape gives the same bits."""
    return np.stack([np.maximum(row @ weights(), 0) for row in x])


def test_a_network_that_keeps_rows_apart_is_proven_with_no_difference_between_shapes() -> None:
    found = verdict(Serving(row_wise), copies=range(2, 17))
    assert found == Verdict(True, sizes=SIZES, same_bits=16, even=tuple(range(2, 17)))


MIXING = {
    "normalises over the batch": lambda x: row_wise((x - x.mean(0)) / (x.std(0) + 1e-6)),
    "one scale a batch": lambda x: row_wise(np.round(x / np.abs(x).max() * 127)),
    "least of the batch": lambda x: row_wise(x - x.min()),
    "first row leaks": lambda x: row_wise(x) + 1e-6 * x[0, 0],
    "a softmax along the wrong axis": lambda x: np.exp(x / 50) / np.exp(x / 50).sum(0),
    "NaN spreads": lambda x: row_wise(x) * (np.nan if np.abs(x).max() > 20 else 1.0),
}


@pytest.mark.parametrize("how", MIXING)
def test_a_network_that_mixes_rows_is_named(how: str) -> None:
    found = verdict(Serving(MIXING[how]))
    assert (found.separable, found.cause.split(":")[0]) == (False, "mixes rows")
    assert found.cause.endswith(" mates")


def test_the_cause_names_the_batch_and_the_mates() -> None:
    loud = verdict(Serving(lambda x: row_wise(x) + (1.0 if x.max() > 30 else 0.0)))
    assert loud.cause == "mixes rows: a batch of 2, loud mates"
    large = verdict(Serving(lambda x: row_wise(x) + (x.max() if len(x) > 4 else 0.0)))
    assert (large.cause, large.sizes) == ("mixes rows: a batch of 8, all kinds of mates", (2, 3, 4))


def test_a_network_that_is_not_deterministic_is_told_apart_from_one_that_mixes() -> None:
    chance = np.random.default_rng(0)
    found = verdict(Serving(lambda x: row_wise(x) + chance.standard_normal()))
    assert (found.separable, found.cause) == (False, "not deterministic: the same batch of 2 again")


def test_differences_between_shapes_and_places_are_measured_and_no_fault() -> None:
    by_shape = verdict(Serving(lambda x: row_wise(x) * np.float32(1 + 1e-6 * len(x))), copies=range(2, 17))
    assert by_shape.separable is True
    assert 1e-6 < by_shape.between_shapes.relative < 3e-5
    assert by_shape.same_bits == 1
    by_place = verdict(Serving(lambda x: row_wise(x) * (1 + 1e-3 * np.arange(len(x))[:, None])))
    assert by_place.separable is True, "a row keeps its place: its mates change nothing"
    assert by_place.between_shapes.relative == pytest.approx(0.015)
    assert (by_shape.even, by_place.even) == (tuple(range(2, 17)), ())


def test_same_bits_counts_every_size_up_to_the_first_that_differs() -> None:
    found = verdict(Serving(lambda x: row_wise(x) * (1.001 if len(x) == 7 else 1.0)), copies=range(2, 17))
    assert (found.separable, found.same_bits) == (True, 6)
    assert verdict(Serving(row_wise)).same_bits == 4, "5 was not looked at"


def test_a_hook_that_changes_its_items_or_reuses_its_outputs_is_no_mixing_network() -> None:
    kept = [[0.0] for _ in range(16)]

    class Reusing(Serving):
        def collate(self, items: list[Any]) -> Any:
            for item in items:
                item -= 1.0
            return np.stack(items)

        def predict(self, inputs: Any) -> Any:
            for row, output in zip(row_wise(inputs), kept, strict=False):
                output[0] = float(row[0])
            return kept[: len(inputs)]

    assert verdict(Reusing(row_wise)).separable is True


@dataclass(frozen=True)
class Text:
    tokens: list[int]
    language: int = 3


class Encoder(Serving):
    """The mean of the tokens' vectors, with and without a mask over the padding."""

    masked = True

    def collate(self, items: list[Any]) -> Any:
        return pad_sequences([item.tokens for item in items], 0)

    def predict(self, inputs: Any) -> Any:
        ids, mask = inputs
        vectors = weights(60, 4)[ids] * (mask[..., None] if self.masked else 1)
        return np.stack([row.sum(0) / (m.sum() if self.masked else len(m)) for row, m in zip(vectors, mask, strict=True)])


def test_sequences_are_tried_among_shorter_ones_at_one_padded_length() -> None:
    masked, bare = Encoder(lambda x: x, Text([5, 9, 11, 2])), Encoder(lambda x: x, Text([5, 9, 11, 2]))
    bare.masked = False
    assert verdict(masked) == Verdict(True, sizes=SIZES, between_shapes=verdict(masked).between_shapes)
    assert verdict(masked, (2,)).cause == "there are no mates to try", "the longest leaves no place for one"
    found = verdict(bare)
    assert (found.separable, found.most_rows, found.sizes) == (False, 1, ())
    assert found.cause.startswith("padding changes a row: a number moves by ")
    assert found.between_shapes.relative > 0.1


@pytest.mark.parametrize(
    ("moves", "tolerance", "separable"), [(0.01, PADDING, True), (0.05, PADDING, False), (0.05, 0.1, True)]
)
def test_padding_may_move_a_row_by_what_engines_round(moves: float, tolerance: float, separable: bool) -> None:
    class Rounding(Encoder):
        def predict(self, inputs: Any) -> Any:
            return np.asarray(super().predict(inputs)) * (1 + moves * (inputs[0].shape[1] - 4) / 4)

    found = verdict(Rounding(lambda x: x, Text([5, 9, 11, 2])), tolerance=tolerance)
    assert found.separable is separable
    assert found.between_shapes.relative == pytest.approx(moves, rel=1e-3), "it is said, be it much or little"


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("leaks", [False, True])
def test_an_output_that_is_padded_itself_is_compared_without_its_padding(left: bool, leaks: bool) -> None:
    class Tokens(Encoder):
        def predict(self, inputs: Any) -> Any:
            ids, _ = inputs
            each = weights(60, 4)[ids] + (leaks * ids.shape[1])
            each = np.stack([np.roll(row, left * (ids != 0).sum() % len(row), 0) for row, ids in zip(each, ids, strict=True)])
            return [{"tokens": row, "kinds": [int(one) for one in row.argmax(1)]} for row in each]

    assert verdict(Tokens(lambda x: x, Text([5, 9, 11, 2]))).separable is not leaks


def test_text_is_compared_as_text() -> None:
    class Echo(Encoder):
        def predict(self, inputs: Any) -> Any:
            ids, mask = inputs
            return [{"text": " ".join(map(str, row[: m.sum()]))} for row, m in zip(ids, mask, strict=True)]

    class FirstAnswers(Echo):
        def predict(self, inputs: Any) -> Any:
            texts = super().predict(inputs)
            return [text | {"of": texts[2]["text"] if len(texts) > 2 else ""} for text in texts]

    echoed = verdict(Echo(lambda x: x, Text([5, 9, 11, 2])))
    assert (echoed.separable, echoed.same_bits, echoed.even) == (True, 1, ()), "the numbers behind it may differ"

    class Padded(Echo):
        def predict(self, inputs: Any) -> Any:
            return [{"text": str(row)} for row in inputs[0]]

    padded = Padded(lambda x: x, Text([5, 9, 11, 2]))
    assert verdict(padded).cause == "padding changes a row: its output is another one beside a longer one"
    assert verdict(padded, tolerance=PADDING_ROUNDED).separable is True, "a tie of two tokens may turn where much is rounded"
    found = verdict(FirstAnswers(lambda x: x, Text([5, 9, 11, 2])))
    assert (found.separable, found.cause) == (False, "mixes rows: a batch of 3, shorter mates")


def test_what_cannot_be_tried_is_not_proven() -> None:
    def fails(x: Any) -> Any:
        raise RuntimeError("no such shape") if len(x) > 3 else MemoryError

    def small(x: Any) -> Any:
        return row_wise(x) if len(x) <= 4 else fails(x)

    failing = verdict(Serving(small))
    assert (failing.separable, failing.sizes, failing.most_rows) == (None, (2, 3, 4), 4)
    assert failing.cause == "a batch of 8 fails: RuntimeError: no such shape"
    nothing = verdict(Serving(fails))
    assert (nothing.cause, nothing.most_rows) == ("a batch of 2 fails: out of memory", 1)
    refused = verdict(Serving(lambda x: row_wise(x) * np.nan))
    assert (refused.separable, refused.cause) == (None, "the example is refused: the model's output is not finite")
    handler = Serving(row_wise, "a text")
    handler.collate = lambda items: np.ones((len(items), 6))  # type: ignore[method-assign]
    assert verdict(handler) == Verdict(None, "there are no mates to try", same_bits=4, even=SIZES)


@pytest.mark.parametrize("together", [True, False])
def test_mates_that_fail_only_in_a_larger_batch_prove_nothing_of_it(together: bool) -> None:
    """They fail where loud ones and empty ones are among three rows and more; or where any are."""
    error: Exception = RuntimeError("overflow guard")

    def guards(x: Any) -> Any:
        least, most = np.abs(x).max(1).min(), np.abs(x).max()
        if len(x) > 2 and (least < 0.01 and most > 50 if together else least != most):
            raise error
        return row_wise(x) if len(x) < 3 else row_wise(np.round(x / most * 127))

    found = verdict(Serving(guards))
    if together:
        assert (found.separable, found.cause) == (False, "mixes rows: a batch of 3, loud mates")
        return
    assert (found.separable, found.sizes, found.most_rows) == (None, (2,), 2)
    assert found.cause == "a batch of 3 fails: RuntimeError: overflow guard"
    error = MemoryError()
    assert verdict(Serving(guards)).cause == "a batch of 3 fails: out of memory"


def test_mates_that_fail_only_together_are_tried_one_kind_after_the_other() -> None:
    calls: list[int] = []

    def guards(x: Any) -> Any:
        calls.append(len(x))
        if len(x) == 4 and not x.any(1).all():
            raise RuntimeError("no empty one among four")
        return row_wise(x)

    found = verdict(Serving(guards))
    assert (found.separable, found.sizes) == (True, SIZES)
    assert [calls.count(size) for size in SIZES] == [1 + 2 + 3, 2 + 1, 2 + 1 + 3, 2 + 2, 2 + 2]


def test_no_size_is_begun_that_would_not_be_done_in_time() -> None:
    now = [0.0]

    def slow(x: Any) -> Any:
        now[0] += len(x)
        return row_wise(x)

    found = verdict(Serving(slow), budget_s=40.0, clock=lambda: now[0])
    assert (found.separable, found.most_rows, found.cause) == (None, 4, "there was no time for batches of 8")
    assert now[0] <= 40.0
    assert verdict(Serving(slow), budget_s=60.0, clock=lambda: now[0]).most_rows == 8


def test_a_shape_runs_as_often_as_its_engine_needs_before_it_counts() -> None:
    seen: dict[int, int] = {}

    def optimises(x: Any) -> Any:
        seen[len(x)] = seen.get(len(x), 0) + 1
        return row_wise(x) * (1.5 if seen[len(x)] <= 2 else 1.0)

    assert verdict(Serving(optimises), settling=0).cause.startswith("not deterministic")
    seen.clear()
    assert verdict(Serving(optimises), settling=2).separable is True


def test_an_archives_own_example_is_the_row(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    values = np.arange(6, dtype=np.float32)
    (tmp_path / "examples" / "a.f32").write_bytes(values.tobytes())
    (tmp_path / "examples" / "b.f32").write_bytes((values + 1).tobytes())
    found = company(tmp_path, Serving(row_wise))
    assert found is not None
    assert bits(found.row) == bits(values)
    assert list(found.mates) == ["loud", "zero", "tiny", "ordinary", "example 1"]
    assert np.abs(found.mates["loud"]).max() > 50


def test_pixels_and_tokens_get_mates_of_their_kind() -> None:
    pixels = company(Path("nowhere"), Serving(row_wise, np.zeros((4, 4, 3), np.uint8)))
    assert pixels is not None
    assert {kind: mate.dtype for kind, mate in pixels.mates.items()} == dict.fromkeys(pixels.mates, np.dtype(np.uint8))
    assert (pixels.mates["loud"] == 255).all()
    tokens = company(Path("nowhere"), Serving(row_wise, np.arange(1, 6)))
    assert tokens is not None
    assert [len(mate) for mate in tokens.mates.values()] == [5, 5, 3, 5]
    assert len(tokens.longest) == 10


def test_an_item_of_several_arrays_gets_mates_in_which_each_is_changed() -> None:
    found = company(
        Path("nowhere"), Serving(row_wise, {"pair": (np.ones(2, np.float32), "kept"), "more": np.ones(3, np.float32)})
    )
    assert found is not None
    zero = found.mates["zero"]
    assert (zero["pair"][0].any(), zero["pair"][1], zero["more"].any()) == (False, "kept", False)
    assert np.abs(found.mates["loud"]["more"]).max() > 10


def test_a_verdict_survives_json() -> None:
    whole = Verdict(True, "", 2, (2, 4), Deviation(1e-6, math.inf), 3, (4,), About("torch fp32 cpu", "2.0", "abc"))
    assert Verdict.from_json(json.loads(json.dumps(whole.to_json()))) == whole
    good = whole.to_json()
    for bad in (None, [], {}, {**good, "separable": "yes"}, {**good, "sizes": 4}, {**good, "between_shapes": {"a": 1}}):
        with pytest.raises(ValueError, match="not a verdict"):
            Verdict.from_json(bad)
    with pytest.raises(ValueError):
        Verdict.from_json({**replace(whole, cause="").to_json(), "cause": 3})


def test_what_compiles_each_new_shape_is_not_taken_for_a_slow_network() -> None:
    """A first call of a shape takes two seconds, each further one a hundredth: all sizes are done in time."""
    now, known = [0.0], set[int]()

    def attempt(items: list[Any], size: int) -> list[Any]:
        now[0] += 0.01 if size in known else 2.0
        known.add(size)
        return [np.array([float(item)]) for item in items]

    verdict = prove(attempt, 1.0, {"loud": 9.0, "tiny": 0.1}, (2, 3, 4, 8, 16), budget_s=12.6, clock=lambda: now[0])
    assert (verdict.separable, verdict.sizes, verdict.most_rows) == (True, (2, 3, 4, 8, 16), 0)


class Weighed(NamedTuple):
    x: Any
    weight: Any


@dataclass(frozen=True)
class Light:
    x: Any
    weight: Any

    def __post_init__(self) -> None:
        if self.weight > 1000:
            raise ValueError("too heavy")


def as_dict(x: Any, weight: Any) -> Any:
    return {"x": x, "weight": weight}


@pytest.mark.parametrize("make", [Weighed, Light, as_dict])
@pytest.mark.parametrize("weight", [70.0, np.float32(70), 70, np.int64(70), True])
@pytest.mark.parametrize("mixes", [True, False])
def test_a_number_in_an_item_is_varied_as_its_arrays_are(make: Callable[..., Any], weight: Any, mixes: bool) -> None:
    class Weighing(Serving):
        def collate(self, items: list[Any]) -> Any:
            pairs = [(one["x"], one["weight"]) if isinstance(one, Mapping) else (one.x, one.weight) for one in items]
            weights = np.array([weight for _, weight in pairs], np.float64)
            return np.stack([x for x, _ in pairs]) + (weights - weights.mean() if mixes else weights)[:, None]

    found = proof(Weighing(row_wise, make(np.zeros(6, np.float32), weight)))
    assert found.separable is not mixes
    assert found.cause.startswith("mixes rows: a batch of 2, ") is mixes
    assert mixes or found.sizes == (2, 3, 4, 8)


class Held:
    """An object that nothing is made of."""

    def __init__(self, x: Any) -> None:
        self.x = x


@pytest.mark.parametrize("examples", [1, 2])
def test_what_holds_an_object_is_proven_where_an_example_holds_another(tmp_path: Path, examples: int) -> None:
    class Holding(Serving):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            x = np.frombuffer(body, np.float32)
            return [(x, Held(x))]

        def collate(self, items: list[Any]) -> Any:
            return np.stack([x + held.x for x, held in items])

    (tmp_path / "examples").mkdir()
    for i in range(examples):
        (tmp_path / "examples" / f"{i}.f32").write_bytes(np.arange(i, i + 6, dtype=np.float32).tobytes())
    found = proof(Holding(row_wise), tmp_path)
    assert (found.separable, found.most_rows, found.sizes) == (True if examples > 1 else None, 0, (2, 3, 4, 8))
    assert found.cause == ("" if examples > 1 else "a part of its items (Held) is the same in all mates")
