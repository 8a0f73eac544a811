"""Of a handler without an example rows of real batches are asked again, alone: what mixes rows answers nobody wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.worker import Headers, Settings, TorchServeHandler
from slotwise.worker.separability.first_batches import FIRST, kind_of
from slotwise.worker.separability.kinds import OF_A_KIND
from tests.worker.leaving import as_json
from tests.worker.toy import POISON, Toy, ask, begin

FAILED = {"error": {"code": 500, "message": "the model failed on this input"}}
Begin = Callable[[Any, Settings], Any]
TRIED = Settings(batch_size=8, proof_s=60.0)


class Unproven(Toy):
    """A toy without an example, whose model is a test's."""

    def __init__(self, model: Any = None) -> None:
        super().__init__()
        self.changed = model

    def example(self) -> Any:
        return None

    def double(self, inputs: np.ndarray[Any, Any]) -> Any:
        outputs = super().double(inputs)
        return self.changed(inputs, outputs) if self.changed else outputs


class ChangesWhatItEncodes(Unproven):
    """Its `encode` spoils the output that it gets."""

    def encode(self, output: Any, item: Any) -> Any:
        output[0] += 1
        return float(output[0] - 1)


class InOneGroup(Unproven):
    """Its author's own `groups` has all rows run together."""

    def groups(self, items: list[Any]) -> list[list[int]]:
        return [list(range(len(items)))]


@pytest.fixture
def begun(tmp_path: Path) -> Begin:
    """Starts a handler, with an archive of no file."""
    return lambda handler, settings: begin(handler, settings, tmp_path)


def bodies(count: int, start: int = 1) -> list[bytes]:
    return [f"[{start + 3 * i}]".encode() for i in range(count)]


def values(handler: Any, asked: list[bytes]) -> list[Any]:
    return [answer.value[0] if answer.code == 200 else answer.code for answer in ask(handler, asked)]


MIXING = {
    "the mean of all is taken away": lambda inputs, outputs: outputs - inputs.mean(),
    "the longest decides for all": lambda inputs, outputs: np.minimum(outputs, 2 * inputs.max() - 7),
    "the first one's is for all": lambda inputs, outputs: outputs * inputs[0],
    "a thousandth of the mean is taken away": lambda inputs, outputs: outputs - 0.001 * inputs.mean(),
    "in reverse order": lambda inputs, outputs: outputs[::-1],
}


@pytest.mark.parametrize("kind", [Unproven, InOneGroup, ChangesWhatItEncodes])
@pytest.mark.parametrize("padding", ["none", "bucketed"])
@pytest.mark.parametrize("mix", MIXING)
def test_what_mixes_rows_answers_nobody_wrong_and_rows_run_one_by_one(
    begun: Begin, mix: str, padding: str, kind: type[Unproven]
) -> None:
    settings = TRIED.but(padding=padding)
    alone = [values(begun(kind(MIXING[mix]), settings), [body])[0] for body in bodies(5)]
    handler = begun(kind(MIXING[mix]), settings)
    assert values(handler, bodies(5)) == alone
    handler.calls.clear()
    assert values(handler, bodies(5)) == alone
    assert [len(inputs) for inputs in handler.calls] == [1] * 5


@pytest.mark.parametrize("kind", [Unproven, ChangesWhatItEncodes])
def test_one_whose_rows_are_apart_runs_them_together_again(begun: Begin, kind: type[Unproven]) -> None:
    handler, counts = begun(kind(), TRIED), []
    for i in range(2 * FIRST + 1):
        handler.calls.clear()
        assert values(handler, bodies(4, i)) == [2 * (i + 3 * j) + 1 for j in range(4)]
        counts.append(len(handler.calls) - 1)
    assert counts[:FIRST] == [counts[0], *[4] * (FIRST - 1)]  # the first one also learns how outputs are read
    assert counts[FIRST:] == [0] * (FIRST - 1) + [1, 0]


@pytest.mark.parametrize(
    "kernel",
    [
        lambda inputs, outputs: outputs * (1 + 0.001 * len(inputs)),  # another one for each size of a batch
        lambda inputs, outputs: outputs * (1 + 0.001 * np.arange(len(inputs))[:, None]),  # and for each place in it
    ],
)
def test_what_a_kernel_rounds_is_no_mates_work(begun: Begin, kernel: Any) -> None:
    handler = begun(Unproven(kernel), TRIED)
    for i in range(2 * FIRST):
        assert values(handler, bodies(4, i)) == pytest.approx([2 * (i + 3 * j) + 1 for j in range(4)], rel=0.005)
    assert handler.max_rows is None


def test_what_begins_to_mix_later_is_seen_at_a_power_of_two(begun: Begin) -> None:
    mixes = []
    handler = begun(Unproven(lambda inputs, outputs: outputs - inputs.mean() * bool(mixes)), TRIED)
    for _ in range(FIRST + 1):
        values(handler, bodies(4))
    mixes.append(True)
    for _ in range(FIRST):
        values(handler, bodies(4))
    assert handler.max_rows == 1


def test_mates_that_are_its_like_tell_nothing_of_a_row(begun: Begin) -> None:
    handler = begun(Unproven(MIXING["the first one's is for all"]), TRIED)
    values(handler, bodies(1) * 4)  # how outputs are read is learned
    for _ in range(3 * FIRST):
        handler.calls.clear()
        values(handler, bodies(1) * 4)
        assert len(handler.calls) == 1
    assert values(handler, bodies(3)) == [3, 36, 105]


@pytest.mark.parametrize("much", [1.0, 0.01])
def test_one_that_draws_by_chance_stays_as_it_is(begun: Begin, much: float) -> None:
    chance = np.random.default_rng(1)
    handler = begun(Unproven(lambda inputs, outputs: outputs + much * chance.random(outputs.shape)), TRIED)
    for _ in range(3):
        assert all(value >= 2 for value in values(handler, bodies(4)))
    assert handler.max_rows is None
    assert [len(inputs) for inputs in handler.calls[-2:]] == [4, 4]  # it is not asked again


def test_a_bad_row_costs_only_itself_and_the_seconds_have_an_end(begun: Begin) -> None:
    handler = begun(Unproven(MIXING["the mean of all is taken away"]), TRIED)
    assert values(handler, [b"[1]", f"[{POISON}]".encode(), b"[5]"]) == [2.0, FAILED, 6.0]
    spent = begun(Unproven(), TRIED.but(proof_s=1e-9))
    for expected in (4, 1, 0, 1, 0):  # all of the first, then of those whose number is a power of two the first row
        spent.calls.clear()
        values(spent, bodies(4))
        assert len(spent.calls) - 1 in (expected, expected + 2)  # two more where it learns how outputs are read


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_row_that_only_its_mates_help_fails_as_it_does_alone(begun: Begin, error: type[BaseException]) -> None:
    def fails_alone(inputs: Any, outputs: Any) -> Any:
        if len(set(inputs[:, 0])) == 1:
            raise error
        return outputs

    handler = begun(Unproven(), TRIED)
    assert values(handler, bodies(4)) == [3, 9, 15, 21]
    handler.changed = fails_alone
    assert values(handler, bodies(4)) == [FAILED] * 4
    assert handler.max_rows == 1


@pytest.mark.parametrize("raises", [False, True])
def test_a_number_that_is_missing_is_not_made_of_the_mates_ones(begun: Begin, raises: bool) -> None:
    def fills(inputs: Any, outputs: Any) -> Any:
        known = inputs[inputs != 7.0]
        if raises and not known.size:
            raise ValueError
        return np.where(inputs == 7.0, known.mean() if known.size else np.nan, outputs)

    handler = begun(Unproven(fills), TRIED)
    values(handler, bodies(2))  # how outputs are read is learned
    assert [isinstance(value, float) for value in values(handler, bodies(3))] == [True, True, False]
    assert handler.max_rows == 1


@pytest.mark.parametrize("error", [ValueError, SystemExit, MemoryError])
def test_one_that_fails_alone_but_among_copies_says_the_same_does_not_mix_rows(
    begun: Begin, error: type[BaseException]
) -> None:
    def fails_alone(inputs: Any, outputs: Any) -> Any:
        if len(inputs) == 1:
            raise error
        return outputs

    handler = begun(Unproven(), TRIED)
    assert values(handler, bodies(4)) == [3, 9, 15, 21]
    handler.changed = fails_alone
    assert values(handler, bodies(4)) == [3, 9, 15, 21]
    assert handler.max_rows is None


def test_nobody_is_asked_again_where_no_proof_is_wanted(begun: Begin) -> None:
    handler = begun(Unproven(), TRIED.but(proof_s=0.0))
    values(handler, bodies(4))
    handler.calls.clear()
    values(handler, bodies(4))
    assert len(handler.calls) == 1


class AnswersIds(Unproven):
    """Answers a whole number, as itself or as JSON that it has written."""

    written = False

    def encode(self, output: Any, item: Any) -> Any:
        number = 1_000_000 + int(output[0])
        return json.dumps({"id": number}) if self.written else {"id": number}


class WritesIds(AnswersIds):
    written = True


class AnswersIdsAsTexts(AnswersIds):
    def encode(self, output: Any, item: Any) -> Any:
        return {"id": str(super().encode(output, item)["id"])}


@pytest.mark.parametrize("kind", [AnswersIds, WritesIds, AnswersIdsAsTexts])
def test_another_ones_id_is_never_the_same_for_it_is_near(begun: Begin, kind: type[Unproven]) -> None:
    handler = begun(kind(MIXING["in reverse order"]), TRIED)
    answered = [json.loads(value) if kind.written else value for value in values(handler, bodies(5))]
    assert [int(one["id"]) for one in answered] == [1_000_003 + 6 * i for i in range(5)]
    assert handler.max_rows == 1


def test_one_of_a_whole_number_may_be_what_a_kernel_rounds(begun: Begin) -> None:
    handler = begun(AnswersIds(lambda inputs, outputs: outputs + (len(inputs) > 1)), TRIED)
    for i in range(4):
        assert [value["id"] for value in values(handler, bodies(4, i))] == [1_000_002 + 2 * i + 6 * j for j in range(4)]
    assert handler.max_rows is None


class InATorchServeHandler(TorchServeHandler):
    """A thousandth of its numbers is the batch's mean; it answers as JSON that it has written itself, or does not."""

    mixes, writes = True, False

    def initialize(self, context: Any) -> None:
        pass

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return np.array([row["body"] for row in data], np.float64)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return data + 0.001 * (data.mean(0) if self.mixes else data * len(data))

    def postprocess(self, data: Any) -> Any:
        return list(map(json.dumps, data.tolist())) if self.writes else data.tolist()


def test_headers_of_several_lengths_hide_nothing(begun: Begin) -> None:
    handler = begun(InATorchServeHandler(), TRIED)
    ask(handler, bodies(4), {i: {"content-type": "application/json", "x-name": "n" * i} for i in range(4)})
    assert handler.max_rows == 1


class WritesJson(InATorchServeHandler):
    mixes, writes = False, True


def test_what_a_kernel_rounds_is_no_mates_work_in_json_that_postprocess_writes(begun: Begin) -> None:
    handler = begun(WritesJson(), TRIED)
    for i in range(4):
        ask(handler, bodies(4, i), as_json(4))
    assert handler.max_rows is None


class NearZero(Unproven):
    """Answers two numbers, as its model gives them."""

    def encode(self, output: Any, item: Any) -> Any:
        return output.tolist()


def test_what_a_kernel_rounds_of_a_number_near_zero_is_no_mates_work(begun: Begin) -> None:
    def rounds(inputs: Any, outputs: Any) -> Any:
        return np.hstack([outputs, np.full_like(outputs, 1e-9 * len(inputs))])

    handler = begun(NearZero(rounds), TRIED)
    for i in range(4):
        values(handler, bodies(4, i))
    assert handler.max_rows is None


class SaysWhen(Unproven):
    """Each answer has the time."""

    def encode(self, output: Any, item: Any) -> Any:
        return [float(output[0]), f"{time.perf_counter_ns()} ns"]


def test_one_whose_answers_have_the_time_is_seen_to_mix_rows_too(begun: Begin) -> None:
    handler = begun(SaysWhen(MIXING["the mean of all is taken away"]), TRIED)
    assert [value[0] for value in values(handler, bodies(3))] == [2.0, 5.0, 8.0]
    assert handler.max_rows == 1


def test_one_whose_answers_have_the_time_runs_rows_together_where_they_are_apart(begun: Begin) -> None:
    handler = begun(SaysWhen(), TRIED)
    for i in range(3):
        assert [value[0] for value in values(handler, bodies(3, i))] == [2 * (i + 3 * j) + 1 for j in range(3)]
    assert handler.max_rows is None


def test_what_runs_from_row_to_row_is_seen_at_a_power_of_two(begun: Begin) -> None:
    mixes = []
    handler = begun(Unproven(lambda inputs, outputs: outputs * inputs[0] if mixes else outputs), TRIED)
    for _ in range(FIRST + 1):
        values(handler, bodies(4, 2))
    mixes.append(True)
    for _ in range(FIRST):
        values(handler, bodies(4, 2))
    assert handler.max_rows == 1


def test_who_draws_by_chance_keeps_nobody_from_seeing_that_others_are_mixed(begun: Begin) -> None:
    chance = np.random.default_rng(1)

    def draws(inputs: Any, outputs: Any) -> Any:
        return np.where(inputs == 10.0, chance.random(outputs.shape), outputs)

    handler = begun(Unproven(draws), TRIED)
    for _ in range(3):
        values(handler, bodies(4))
    handler.changed = MIXING["the mean of all is taken away"]
    assert values(handler, bodies(3)) == [2.0, 5.0, 8.0]


class NotesOnItems(Unproven):
    """`collate` notes on each item what is the largest number of all, and `encode` answers with that."""

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [{"x": float(x)} for x in json.loads(body)]

    def collate(self, items: list[Any]) -> Any:
        for item in items:
            item["most"] = max(one["x"] for one in items)
        return np.array([[item["x"]] for item in items])

    def encode(self, output: Any, item: Any) -> Any:
        return float(output[0] + item["most"])


def test_what_was_noted_on_an_item_in_a_batch_is_in_no_answer_alone(begun: Begin) -> None:
    assert values(begun(NotesOnItems(), TRIED), bodies(3)) == [4.0, 13.0, 22.0]


class FillsUp(InATorchServeHandler):
    """What is missing becomes the mean of the others, or 0 where there is none."""

    fills = True

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return np.array([[np.nan if x is None else x for x in row["body"]] for row in data], np.float64)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        known = data[~np.isnan(data)]
        return np.where(np.isnan(data), known.mean() if known.size and self.fills else 0.0, data)


class FillsUpByNought(FillsUp):
    fills = False


@pytest.mark.parametrize("kind", [FillsUp, FillsUpByNought])
def test_the_first_rows_of_another_kind_are_asked_again_whenever_they_come(begun: Begin, kind: type[FillsUp]) -> None:
    handler = begun(kind(), TRIED)
    for start in range(2 * FIRST + 1):  # the next one that is due is far
        ask(handler, bodies(4, start), as_json(4))
    assert handler.max_rows is None
    answers = ask(handler, [*bodies(3), b"[null]"], as_json(4))
    assert answers[3].value == [0.0]
    assert handler.max_rows == (1 if kind.fills else None)


def test_a_kind_is_what_an_item_is_made_of() -> None:
    assert (
        kind_of({"a": [1.0, None]}) == kind_of({"a": [2.0, 3.0, None]}) != kind_of({"a": [1.0, 2.0]}) == kind_of({"a": [7.0]})
    )
    assert kind_of(("array", np.array([1.0, np.nan]))) != kind_of(("array", np.ones(9))) == kind_of(("array", np.zeros((2, 2))))
    assert len({kind_of(item) for item in ({"a": 1}, {"b": 1}, {"a": ""}, {"a": "x"}, {"a": None}, {})}) == 6


class OfManyKinds(Unproven):
    """Each body is of another kind, as keys are that a client makes up."""

    def decode(self, body: bytes, headers: Headers) -> Any:
        return [{str(number): float(number) for number in json.loads(body)}]

    def collate(self, items: list[Any]) -> Any:
        return np.array([list(item.values()) for item in items])


def test_kinds_that_a_client_makes_up_have_an_end(begun: Begin) -> None:
    handler, counts = begun(OfManyKinds(), TRIED), []
    for start in range(4 * FIRST):
        handler.calls.clear()
        ask(handler, bodies(4, 100 * start))
        counts.append(len(handler.calls) - 1)
    assert counts[FIRST + 1] == 0
    assert sum(counts[-8:]) <= 1


class TakesTheFirstOnes(InATorchServeHandler):
    """Multiplies by an option that a request may have, and takes the first one's for all."""

    first = True

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return [row["body"] for row in data]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return [row["x"] * (data[0] if self.first else row).get("times", 1) for row in data]

    def postprocess(self, data: Any) -> Any:
        return data


class TakesItsOwn(TakesTheFirstOnes):
    first = False


def with_option(count: int, place: int) -> list[bytes]:
    return [json.dumps({"x": i + 1} | ({"times": 10} if i == place else {})).encode() for i in range(count)]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("kind", [TakesTheFirstOnes, TakesItsOwn])
def test_what_no_example_has_is_looked_at_though_its_rows_are_proven_to_be_kept_apart(
    tmp_path: Path, kind: type[TakesTheFirstOnes], place: int
) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "1.json").write_text('{"x": 7}')
    handler = begin(kind(), TRIED, tmp_path)
    assert handler.pipeline.verdict.separable
    assert [answer.value for answer in ask(handler, with_option(4, -1), as_json(4))] == [1, 2, 3, 4]
    expected = [(i + 1) * (10 if i == place else 1) for i in range(4)]
    for _ in range(OF_A_KIND + 1):
        assert [answer.value for answer in ask(handler, with_option(4, place), as_json(4))] == expected
    assert handler.max_rows == (1 if kind.first else None)


class OfThoseThere(Toy):
    """Its rows are apart where none is above 1000, as its example is."""

    def double(self, inputs: np.ndarray[Any, Any]) -> Any:
        outputs = super().double(inputs)
        return outputs if inputs.max() < 1000 else outputs / inputs.max()


def test_one_row_of_ever_fewer_batches_is_asked_again_though_they_are_proven_to_be_kept_apart(begun: Begin) -> None:
    handler, counts = begun(Toy(), TRIED), []
    for i in range(2 * FIRST):
        handler.calls.clear()
        assert values(handler, bodies(4, i)) == [2 * (i + 3 * j) + 1 for j in range(4)]
        counts.append(len(handler.calls) - 1)
    assert [i + 1 for i, more in enumerate(counts) if more] == [1, 2, 4, 8, 16, 32]
    assert max(counts) == 1
    handler = begun(OfThoseThere(), TRIED)
    assert handler.pipeline.verdict.separable
    large = [b"[7]", b"[2001]", b"[9]"]
    alone = [values(begun(OfThoseThere(), TRIED), [body])[0] for body in large]
    assert values(handler, large) == alone
    assert handler.max_rows == 1


def test_what_rounds_much_is_not_looked_at_where_it_is_proven(begun: Begin) -> None:
    assert begun(Toy(), TRIED.but(precision="bf16")).pipeline.first_batches is None
    assert begun(Unproven(), TRIED.but(precision="bf16")).pipeline.first_batches is not None
