"""What a network's numbers become: probabilities with labels, or a regression's values."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.worker.labels import LEAST, ClassifierAnswers, answered, classified, decimals, in_words, scores, unlisted
from slotwise.worker.request import Headers, Request
from slotwise.worker.slot_errors import ModelFault

TWO = {"labels": ["no", "yes"]}


def test_one_number_a_row_is_the_second_of_two_labels() -> None:
    logits = scores(np.float32([[0.0], [100.0], [-100.0]]), {**TWO, "output": "score:logits"})
    assert logits.tolist() == [[0.5, 0.5], [0.0, 1.0], [1.0, pytest.approx(0.0, abs=1e-30)]]
    assert scores(np.float32([0.25]), {**TWO, "output": "probabilities"}).tolist() == [[0.75, 0.25]]


def test_probabilities_stay_what_they_are_and_logits_do_not() -> None:
    rows = np.float32([[0.25, 0.75]])
    assert scores(rows, {"options": {"onnx": {"softmax": True}}}) is rows
    assert scores(rows, {"output": "regression"}) is rows
    assert scores(np.float32([[0.0, 0.0]]), {}).tolist() == [[0.5, 0.5]]


def test_a_regression_gives_its_values() -> None:
    model: dict[str, Any] = {"output": "price:regression"}
    assert answered(np.float32([3.1]), model) == {"value": 3.1}
    assert answered(np.float32([3.1, -1]), model) == {"values": [3.1, -1.0]}
    assert answered(np.float32([3.1, -1]), {**model, "labels": ["x", "y"]}) == {"values": {"x": 3.1, "y": -1.0}}
    with pytest.raises(ModelFault, match="2 values for 1 labels"):
        answered(np.float32([3.1, -1]), {**model, "labels": ["x"]})


@pytest.mark.parametrize("classes", [3, 40])
def test_the_best_come_first_and_of_equals_the_lower_number(classes: int) -> None:
    row = np.zeros(classes)
    row[[1, 2]] = 0.4
    assert classified(row, (), 3) == {"label": "1", "probabilities": {"1": 0.4, "2": 0.4, "0": 0.0}}
    with pytest.raises(ModelFault, match=f"{classes} scores for 1 labels"):
        classified(row, ["a"], 3)


@pytest.mark.parametrize("classes", [10, 40])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int8, bool])
def test_scores_that_are_whole_numbers_are_sorted_as_numbers(classes: int, dtype: Any) -> None:
    row = np.zeros(classes, dtype)
    row[7], row[3] = np.iinfo(dtype).max if dtype is not bool else True, dtype is np.uint8 or dtype is np.uint64
    assert list(classified(row, (), 2)["probabilities"]) == ["7", "3" if row[3] else "0"]
    lowest = np.full(40, -128, np.int8)
    lowest[5] = 0
    assert classified(lowest, (), 1)["label"] == "5"


def test_a_negative_score_is_rounded_to_the_nearest() -> None:
    row = np.array([-0.1234564, -2.5, -0.9999996])
    assert classified(row, [], 3)["probabilities"] == {"0": -0.123456, "2": -1.0, "1": -2.5}


@pytest.mark.parametrize(
    ("model", "outputs", "own"),
    [
        ({}, [[1.0, -2.0, 0.5]], [1.0, -2.0, 0.5]),
        ({}, [[0.0, -np.inf]], [0.0, LEAST]),
        ({"output": "probabilities"}, [[0.25, 0.75]], None),
        ({**TWO, "output": "probabilities"}, [[0.25]], [0.25]),
        ({**TWO, "output": "x:logits"}, [[3.0]], [3.0]),
        ({"output": "regression"}, [[3.0, -1.0]], None),
    ],
)
def test_every_score_and_the_networks_own_numbers_are_there_for_who_asks(model: Any, outputs: Any, own: Any) -> None:
    given = np.float32(outputs)
    answers = ClassifierAnswers(model)
    (row,) = answers.rows(given)
    result = answers.result(row)
    assert np.isfinite(row).all()
    assert result[0] == answered(scores(given, model)[0], model)
    plain, full = Request(b""), Request(b"", Headers({"X-Scores": "all"}))
    refused = ModelFault("no")
    assert answers.shown(plain, [result, refused]) == [result[0], refused]
    shown, error = answers.shown(full, [result, refused])
    assert error is refused
    assert shown["answer"] == result[0]
    assert shown["scores"] == scores(given, model)[0].tolist()
    assert shown.get("outputs") == own


def test_an_answer_can_have_the_shape_of_mms() -> None:
    model = {"labels": ["n02123045 tabby, tabby cat", "n02123159 tiger cat", *"cdefg"], "options": {"answer": "mms"}}
    rows = np.float32([[0.0, 3.0, 1.0, 0.5, -1.0, -2.0, 2.0]])
    answer = answered(scores(rows, model)[0], model)
    plain = answered(scores(rows, model)[0], {**model, "options": {}})
    assert len(answer) == 5
    assert answer == [{"probability": score, "class": label} for label, score in plain["probabilities"].items()]
    assert unlisted(answer) == plain
    bare = in_words(Request(b"", Headers({"Accept": "text/plain"})), answer, "application/json")
    assert bare == ("n02123159 tiger cat", "text/plain; charset=utf-8")
    for refused in ({**model, "options": {"answer": "list"}}, {**model, "output": "regression"}):
        with pytest.raises(ValueError, match=r"options\.answer"):
            answered(rows[0], refused)


@pytest.mark.parametrize("answer", [[], [1], [{"class": "a"}], {"label": "a"}, "text", [[{"probability": 1, "class": "a"}]]])
def test_any_other_answer_is_none_of_mms(answer: Any) -> None:
    assert unlisted(answer) is answer


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_decimals_are_the_same_numbers_again(dtype: Any) -> None:
    """Numpy's text of a number of half precision has four digits."""
    numbers = np.array([[65504, 1 / 3, 3.1], [2049, -6e-8, 1e-4]], dtype)
    assert (np.array(decimals(numbers), dtype) == numbers.ravel()).all()
    assert decimals(np.array([65504, 2050, 0.5], dtype)) == [65504, 2050, 0.5]


def test_named_outputs_of_half_precision_are_answered_exactly() -> None:
    spec = importlib.util.spec_from_file_location("tensors_handler", Path(__file__).parents[2] / "handlers" / "tensors.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    numbers = np.array([[65504, 2049], [1 / 3, 1e-4]], np.float16)
    said = module.Tensors.encode(None, {"half": numbers, "one": numbers[0, 0], "flag": np.array([True])}, None)
    assert (np.array(said["half"], np.float16) == numbers).all()
    assert (said["half"][0], said["one"], said["flag"]) == ([65504, 2048], 65504, [True])
