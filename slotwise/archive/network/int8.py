"""Build an archive that serves in int8 (`slotwise build MODEL --int8`), where int8 was found to answer as fp32 does."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slotwise.archive.network.int8_examples import need_examples
from slotwise.errors import SlotwiseError, missing_package
from slotwise.files import project
from slotwise.model_spec import ModelSpec
from slotwise.profiles.profile import load_profile

ENGINE = "openvino"


@dataclass(frozen=True)
class Int8Agreement:
    """How far int8 agrees with fp32, as measured when the weights were made.

    same_label: the share of `pictures` with the same best label. sure_same_label: the same of the `sure` ones, of which fp32 is
    sure; None where it is sure of none. moved: how far a probability moved at most.
    """

    pictures: int
    same_label: float
    sure: int
    sure_same_label: float | None
    moved: float

    def sentence(self) -> str:
        """The agreement in one line."""
        surely = (
            f", {self.sure_same_label:.1%} of the {self.sure} that fp32 is sure of" if self.sure_same_label is not None else ""
        )
        return (
            f"int8 gives the label of fp32 for {self.same_label:.1%} of {self.pictures} pictures{surely};"
            f" a probability moves by up to {self.moved:.2f}"
        )

    def data(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)


def need_int8(spec: ModelSpec) -> None:
    """Raise SlotwiseError where this model can have no int8 weights here, before anything is made."""
    if spec.weights.openvino_int8 is None:
        need_examples(spec)
    for package in ("nncf", "openvino"):
        if importlib.util.find_spec(package) is None:
            raise missing_package(package, "--int8")


def agreement_of(spec: ModelSpec, measured: Mapping[str, Any]) -> Int8Agreement:
    """What make.py measured of int8. Raises SlotwiseError where that is not good enough, or nothing was measured."""
    verdict = measured.get("engines", {}).get(f"{ENGINE}-int8")
    if verdict is None or not verdict.get("checked", True):
        why = (verdict or {}).get("why", "its make.py measured nothing")
        raise SlotwiseError(
            f"nobody knows what {spec.name} answers in int8: {why}",
            "its make.py returns what slotwise.zoo.vision.export returns",
        )
    if not verdict["passed"]:
        raise SlotwiseError(
            f"{spec.name} in int8 is not good enough: {verdict['why']}",
            "build it without --int8, calibrate with pictures like yours, or keep more convolutions in fp32 (int8_exact)",
        )
    return Int8Agreement(
        pictures=measured["pictures"],
        same_label=verdict["top1_agreement"],
        sure=verdict.get("sure", 0),
        sure_same_label=verdict.get("sure_top1_agreement"),
        moved=verdict["largest_difference"],
    )


def agreement_in(archive: Path) -> Int8Agreement:
    """What the report beside an archive that was built for int8 says."""
    report = json.loads(archive.with_name(f"{archive.stem}.report.json").read_text("utf-8"))
    return Int8Agreement(**report["int8"])


def served_in_int8(spec: ModelSpec) -> ModelSpec:
    """The spec with int8 in each profile that runs on the CPU. What `--set` says is still stronger."""
    wishes = {"engine": ENGINE, "precision": "int8"}
    names = [name for name in project.profiles() if load_profile(name, environ={}, cores=0).device == "cpu"]
    return spec.model_copy(update={"profiles": spec.profiles | {name: spec.profiles.get(name, {}) | wishes for name in names}})
