"""Tensors in three forms, and what each wrong one gets; the engine is a numpy product."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.files.project import handler_file
from slotwise.worker import Headers, ModelFault, Request, Settings, engines
from slotwise.worker.labels import RAW_NUMBERS, answered, classified, declared_output, in_words, probabilities
from tests.worker.toy import ask, begin

SHAPE = (1, 2, 3)
Started = Callable[..., Any]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """A tensor classifier on a model.toml's worth of keys; a row's scores are its six numbers."""

    def start(labels: list[str] | None = None, options: dict[str, Any] | None = None, **described: Any) -> Any:
        model = {
            "input": {"shape": list(SHAPE), **described},
            "labels": labels or list("abcdef"),
            "top_k": 2,
            "options": options or {},
        }
        (tmp_path / "slotwise.json").write_text(json.dumps({"model": model, "profiles": {}}))
        monkeypatch.setattr(engines, "load_engine", lambda *_: lambda x: x.reshape(len(x), -1))
        spec = importlib.util.spec_from_file_location("tensor_classifier", handler_file("tensor_classifier"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return begin(module.TensorClassifier(), Settings.load(tmp_path, {}), tmp_path)

    return start


def npy(array: Any) -> bytes:
    target = io.BytesIO()
    np.save(target, array)
    return target.getvalue()


TENSOR = np.array([0, 3, 0, 0, 0, 1], np.float32).reshape(SHAPE)
JSON = {0: {"Content-Type": "application/json"}}


def test_three_forms_of_one_tensor_give_one_answer(started: Started) -> None:
    handler = started()
    answers = ask(handler, [TENSOR.tobytes(), npy(TENSOR), TENSOR.tolist()], {2: JSON[0]})
    assert [answer.code for answer in answers] == [200] * 3
    assert answers[0].value["label"] == "b"
    assert list(answers[0].value["probabilities"]) == ["b", "f"]
    assert answers[0].value == answers[1].value == answers[2].value


@pytest.mark.parametrize("array", [TENSOR[0], TENSOR[None], TENSOR.astype(">f4")])
def test_axes_of_one_and_byte_order_do_not_matter(started: Started, array: Any) -> None:
    assert ask(started(), [npy(array)])[0].value["label"] == "b"


def test_json_is_json_in_whatever_case_its_content_type_is_written(started: Started) -> None:
    body = b"[[0, 3, 0],   [0, 0, 1]]"
    assert len(body) == TENSOR.nbytes, "as raw numbers it would be a tensor, too"
    assert ask(started(), [body], {0: {"Content-Type": "Application/JSON"}})[0].value["label"] == "b"


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded", "text/plain"])
def test_text_of_as_many_bytes_is_no_raw_number(started: Started, kind: str) -> None:
    headers = {"Content-Type": kind} if kind else {}
    good = ask(started(), [b"[[0, 3, 0],   [0, 0, 1]]"], {0: headers})[0]
    assert good.value["label"] == "b"
    for text in (b"0.0,3.0,0.00,0.00,0.0,1.", b"[[0, 3, 0],   [0, 0, 1];"):
        assert len(text) == TENSOR.nbytes
        assert ask(started(), [text], {0: headers})[0].code == 400
    assert ask(started(), [TENSOR.tobytes()], {0: {"Content-Type": "text/csv"}})[0].code == 400


def test_numbers_that_say_so_are_numbers_whatever_text_they_look_like(started: Started) -> None:
    handler = started()
    for text in (b"0.0,3.0,0.00,0.00,0.0,1.", b"[[0, 3, 0],   [0, 0, 1]]", b"\x93NUMPY" + b"@" * 18):
        headers = {"X-Scores": "all"}
        bodies = [text, npy(np.frombuffer(text, "<f4").reshape(SHAPE))]
        said, same = ask(handler, bodies, {0: {"Content-Type": RAW_NUMBERS, **headers}, 1: headers})
        assert said.code == 200
        assert said.value == same.value
    assert ask(handler, [b"0.0"], {0: {"Content-Type": RAW_NUMBERS}})[0].code == 400


def test_the_bare_label_for_who_accepts_only_text(started: Started) -> None:
    assert ask(started(), [TENSOR.tobytes()], {0: {"Accept": "text/plain"}})[0].body == b"b"


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (b"", 400, "24 bytes"),
        (TENSOR.tobytes()[:-1], 400, "got 23 bytes"),
        (npy(TENSOR)[:-3], 400, "cannot be read"),
        (b"\x93NUMPY\x01\x00", 400, "cannot be read"),
        (npy(np.zeros((3, 2), np.float32)), 422, "got 3x2"),
        (npy(np.zeros(SHAPE)), 422, "got float64"),
        (npy(np.float32(1)), 422, "one number"),
        (np.full(SHAPE, np.nan, np.float32).tobytes(), 422, "NaN"),
        (npy(np.full(SHAPE, np.inf, np.float32)), 422, "infinity"),
    ],
)
def test_a_wrong_tensor_is_told_what_was_expected(started: Started, body: bytes, code: int, said: str) -> None:
    good, bad = ask(started(), [TENSOR.tobytes(), body])
    assert good.code == 200
    assert bad.code == code
    assert said in bad.value["error"]["message"]
    assert "float32 of shape 1x2x3" in bad.value["error"]["message"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", 400),
        (b"[[1, 2, 3], [4, 5]]", 400),
        (b"[" * 100_000, 400),
        (b"{}", 422),
        (b'"abc"', 422),
        (b'[["1", "2", "3"], ["4", "5", "6"]]', 422),
        (b"[[true, true, true], [true, true, true]]", 422),
        (b"[[1, 2, 3], [4, false, 6]]", 422),
        (b"[[1, 2, null], [4, 5, 6]]", 422),
        (b"[[1, 2, 1e999], [4, 5, 6]]", 422),
        (b"[[1, 2, 1e300], [4, 5, 6]]", 422),
        (b"[1, 2, 3, 4, 5, 6]", 422),
        (b"[]", 422),
    ],
)
def test_wrong_json(started: Started, body: bytes, code: int) -> None:
    answer = ask(started(), [body], JSON)[0]
    assert answer.code == code
    assert "float32 of shape 1x2x3" in answer.value["error"]["message"]


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_truth_is_no_number_however_it_is_encoded(started: Started) -> None:
    body = "[[true, 3, 0], [0, 0, 1]]".encode("utf-16")
    assert ask(started(), [body], JSON)[0].code == 422


def test_normalisation_and_whole_numbers(started: Started) -> None:
    handler = started(mean=[1.0], std=[2.0])
    assert ask(handler, [np.full(SHAPE, 3, np.float32).tobytes()])[0].code == 200
    assert np.array_equal(handler.collate([np.full(SHAPE, 3, np.float32)] * 2), np.ones((2, *SHAPE)))
    whole = started(dtype="uint8")
    assert whole.decode(b"\x01\x02\x03\x04\x05\xff", {})[0].max() == 255
    assert ask(whole, [b"[[1, 2, 3], [4, 5, 256]]"], JSON)[0].code == 422
    assert ask(whole, [b"[[1, 2, 3], [4, 5, 1.5]]"], JSON)[0].code == 422
    large = started(dtype="int64")
    assert large.decode(b"[[1, 2, 3], [4, 5, 9007199254740993]]", Headers(JSON[0]))[0].max() == 2**53 + 1
    assert ask(large, [b"[[1, 2, 3], [4, 5.0, 9007199254740993]]"], JSON)[0].code == 422, "it would be read as ...992"


def test_probabilities_and_labels_that_do_not_fit(started: Started) -> None:
    assert classified(np.array([0.1, 0.7, 0.2]), [], 2) == {"label": "1", "probabilities": {"1": 0.7, "2": 0.2}}
    assert classified(np.array([-0.0000013, -2.5]), [], 2)["probabilities"] == {"0": -0.000001, "1": -2.5}
    assert probabilities([[1000.0, 0.0]]).tolist() == [[1.0, 0.0]]
    assert np.isnan(probabilities([[np.inf, 0.0], [np.nan, 1.0]])).any(axis=1).all()
    assert ask(started(labels=["only", "two"]), [TENSOR.tobytes()])[0].code == 500
    handler = started(options={"softmax": False})
    assert ask(handler, [TENSOR.tobytes()])[0].value["probabilities"] == {"b": 3.0, "f": 1.0}


def test_a_regression_answers_its_value_and_in_text_the_bare_one(started: Started) -> None:
    values = answered(np.array([3.1], np.float32), {"output": "regression"})
    assert values == {"value": 3.1}
    assert answered([1.5, 2.5], {"output": "x:regression", "labels": ["a", "b"]}) == {"values": {"a": 1.5, "b": 2.5}}
    with pytest.raises(ModelFault, match="2 values for 1 labels"):
        answered([1.5, 2.5], {"output": "regression", "labels": ["a"]})
    request = Request(b"", Headers({"accept": "text/plain"}))
    assert in_words(request, {"value": 3.1}, "application/json") == ("3.1", "text/plain; charset=utf-8")
    assert in_words(request, {"label": "b"}, "application/json") == ("b", "text/plain; charset=utf-8")


def test_a_name_and_a_kind_of_output_are_told_apart() -> None:
    said = {"logits": ("", "logits"), "scores": ("scores", ""), "scores:logits": ("scores", "logits")}
    said |= {"Identity:0": ("Identity:0", "")}
    assert {output: declared_output({"output": output}) for output in said} == said
    assert declared_output({}) == ("", "")


def test_every_score_stands_beside_the_answer_where_that_is_asked_for(started: Started) -> None:
    handler = started()
    first, bad, full = ask(handler, [TENSOR.tobytes(), b"no tensor", TENSOR.tobytes()], {2: {"X-Scores": "all"}})
    assert (first.code, bad.code, full.code) == (200, 400, 200)
    assert full.value["answer"] == first.value
    assert full.value["outputs"] == TENSOR.ravel().tolist()
    assert sum(full.value["scores"]) == pytest.approx(1)
    assert full.value["scores"][1] == pytest.approx(first.value["probabilities"]["b"], abs=1e-6)
