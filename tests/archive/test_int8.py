"""`slotwise build --int8` is refused where int8 is not there, or does not answer as fp32 does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.network.int8 import Int8Agreement, agreement_of, need_int8, served_in_int8
from slotwise.errors import SlotwiseError
from slotwise.model_spec import load_spec

MODELS = Path(__file__).parents[2] / "models"
GOOD = {
    "passed": True,
    "checked": True,
    "top1_agreement": 0.95,
    "largest_difference": 0.2,
    "sure": 50,
    "sure_top1_agreement": 0.98,
}


def test_what_was_measured_is_said_in_one_line() -> None:
    measured = {"pictures": 64, "engines": {"openvino-int8": GOOD}}
    agreement = agreement_of(load_spec(MODELS / "resnet18"), measured)
    assert agreement == Int8Agreement(64, 0.95, 50, 0.98, 0.2)
    assert agreement.sentence() == (
        "int8 gives the label of fp32 for 95.0% of 64 pictures, 98.0% of the 50 that fp32 is sure of;"
        " a probability moves by up to 0.20"
    )


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        ({**GOOD, "passed": False, "why": "only 91.0% of its answers agree with eager fp32"}, "not good enough: only 91.0%"),
        ({"passed": False, "checked": True, "why": "RuntimeError: no kernel"}, "not good enough: RuntimeError: no kernel"),
        ({"passed": True, "checked": False, "why": "this machine cannot"}, "nobody knows .*: this machine cannot"),
        (None, "nobody knows .*: its make.py measured nothing"),
    ],
)
def test_int8_that_is_not_known_to_be_good_is_refused(verdict: dict[str, Any] | None, message: str) -> None:
    measured = {"pictures": 64, "engines": {"openvino-int8": verdict} if verdict else {}}
    with pytest.raises(SlotwiseError, match=message) as refused:
        agreement_of(load_spec(MODELS / "resnet18"), measured)
    assert refused.value.hint


def test_a_model_without_int8_weights_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SlotwiseError, match="digits has no int8 weights"):
        need_int8(load_spec(MODELS / "digits"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SlotwiseError, match="needs the Python package nncf"):
        need_int8(load_spec(MODELS / "resnet18"))


def test_only_profiles_of_the_cpu_serve_int8_and_the_models_own_wishes_stay() -> None:
    spec = load_spec(MODELS / "resnet18")
    profiles = served_in_int8(spec).profiles
    assert profiles["cpu"] == spec.profiles["cpu"] | {"engine": "openvino", "precision": "int8"}
    assert profiles.get("cuda", {}) == spec.profiles.get("cuda", {})
