"""Compare every installed engine with eager fp32 at build: for the build's report, and to stop a build that went wrong.

Trained weights are compared by their answers: the share of pictures with the same best label must be 99% (97% for int8).
Of a reduced precision only those pictures count of which fp32 is sure: it prefers its best label by more than 0.1.
Untrained weights have no meaningful best label; there no probability may differ by more than 0.02. bf16 is compared where the
building machine computes it in hardware. No result of this goes into the archive, because a worker compares again where it
runs.

What the comparison needs is kept beside the weights (compared.npz). So a later build compares engines that were not installed,
or that were in another version, and trains nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.errors import SlotwiseError
from slotwise.worker.engines import forms, load_engine
from slotwise.worker.engines.choice import installed
from slotwise.worker.engines.processor import has_bf16
from slotwise.worker.engines.versions import environment
from slotwise.worker.environment.settings import Settings
from slotwise.worker.labels import probabilities

LEAST_AGREEMENT = {"fp32": 0.99, "bf16": 0.99, "fp16": 0.99, "int8": 0.97}
SURE = 0.1
MOST_DIFFERENCE = 0.02
BATCH = 8
KEPT = "compared.npz"
CANDIDATES = (
    ("torch", "fp32"),
    ("torch", "bf16"),
    ("onnxruntime", "fp32"),
    ("openvino", "fp32"),
    ("openvino", "bf16"),
    ("openvino", "int8"),
)

Predict = Callable[[Any], Any]


def check(out: Path, weights: Mapping[str, str], reference: Predict, pixels: Any, trained: bool) -> dict[str, Any]:
    """Compare every installed engine on the weights in `out` with `reference` (eager fp32).

    pixels: [n, ...]. Returns {"engines": {"openvino-fp32": {"top1_agreement", "largest_difference", "passed", ...}}}; `with`
    are the versions that a verdict is about.

    Raises SlotwiseError where no engine passes. It also raises where an engine runs in fp32 but answers otherwise, because an
    archive's answers must not depend on which engine is installed where it is served.
    """
    expected, _ = _run(reference, pixels)
    np.savez_compressed(out / KEPT, pixels=pixels, expected=expected)
    engines = _candidates(weights)
    verdicts = {key: _verdict(out, weights, key, expected, pixels, trained) for key in engines}
    _refuse(verdicts)
    return {"pictures": len(pixels), "trained": trained, "engines": verdicts}


def complete(out: Path, weights: Mapping[str, str], measured: Mapping[str, Any]) -> dict[str, Any]:
    """What `check` returned earlier, with a verdict on each engine as it is installed now, and on no other.

    Only engines that were not compared in this version are compared. Raises SlotwiseError as `check` does.
    """
    if not (out / KEPT).is_file() or "engines" not in measured:
        return dict(measured)
    verdicts = {key: measured["engines"].get(key, {}) for key in _candidates(weights)}
    missing = [key for key, verdict in verdicts.items() if verdict.get("with") != environment(_name(key))]
    if missing:
        with np.load(out / KEPT) as kept:
            pixels, expected = kept["pixels"], kept["expected"]
        for key in missing:
            verdicts[key] = _verdict(out, weights, key, expected, pixels, measured["trained"])
    _refuse(verdicts)
    return {**measured, "engines": verdicts}


def _candidates(weights: Mapping[str, str]) -> list[str]:
    """The engines that are installed and can load these weights, as ENGINE-PRECISION."""
    return [f"{name}-{way}" for name, way in CANDIDATES if forms(name, way) & set(weights) and installed(name)]


def _name(key: str) -> str:
    return key.rpartition("-")[0]


def _refuse(verdicts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise SlotwiseError where no engine passes, or one that runs in fp32 answers otherwise."""
    for engine, verdict in verdicts.items():
        if engine.endswith("-fp32") and not verdict["passed"] and "largest_difference" in verdict:
            raise SlotwiseError(f"{engine} does not give the answers of the network: {verdict['why']}", "export it again")
    if not any(verdict["passed"] and verdict["checked"] for verdict in verdicts.values()):
        why = "; ".join(f"{engine}: {verdict['why']}" for engine, verdict in verdicts.items())
        raise SlotwiseError("no engine gives the answers of eager fp32", why or "install one: torch, onnxruntime, openvino")


def compare(
    expected: Any, observed: Any, precision: str, trained: bool, answered: Callable[[Any], Any] = probabilities
) -> dict[str, Any]:
    """Two engines' outputs [n, ...]: how far they agree, and whether that is enough.

    answered: makes the probabilities [n, labels] that are answered of outputs, where those are no logits of each label.
    """
    if observed.shape != expected.shape or not np.isfinite(observed).all():
        return {"passed": False, "why": f"its outputs are {observed.shape}, not {expected.shape}, or not finite"}
    wanted, found = answered(expected), answered(observed)
    if not np.isfinite(wanted).all():
        return {"passed": False, "why": "the outputs of eager fp32 are not finite"}
    same = found.argmax(1) == wanted.argmax(1)
    sure = _sure(wanted)
    difference = float(np.abs(found - wanted).max())
    figures: dict[str, Any] = {"top1_agreement": round(float(same.mean()), 4), "largest_difference": round(difference, 5)}
    if sure.any():
        figures |= {"sure": int(sure.sum()), "sure_top1_agreement": round(float(same[sure].mean()), 4)}
    counted = same if precision == "fp32" or not sure.any() else same[sure]
    agreement = float(counted.mean())
    if trained and agreement < LEAST_AGREEMENT[precision]:
        return {**figures, "passed": False, "why": f"only {agreement:.1%} of its answers agree with eager fp32"}
    if not trained and difference > MOST_DIFFERENCE:
        return {**figures, "passed": False, "why": f"a probability differs by {difference:.3f} from eager fp32"}
    return {**figures, "passed": True}


def _sure(answers: Any) -> Any:
    """Which rows of [n, labels] prefer their best label by more than SURE: bool [n]."""
    best = np.sort(answers, axis=1)
    return best[:, -1] - best[:, -2] > SURE


def _verdict(out: Path, weights: Mapping[str, str], key: str, expected: Any, pixels: Any, trained: bool) -> dict[str, Any]:
    """One engine in one precision beside what is expected, and the versions that this is about."""
    name, _, precision = key.rpartition("-")
    versions = {"with": environment(name)}
    if precision == "bf16" and not has_bf16():
        return {"passed": True, "checked": False, "why": "the building machine has no bf16 in hardware", **versions}
    try:
        settings = Settings(engine=name, precision=precision, threads=2, model={"weights": dict(weights)})
        observed, images_per_s = _run(load_engine(out, settings), pixels)
    except Exception as error:
        return {"passed": False, "checked": True, "why": f"{type(error).__name__}: {error}"[:300], **versions}
    figures = compare(expected, observed, precision, trained)
    return {**figures, "checked": True, "images_per_s": images_per_s, **versions}


def _run(predict: Predict, pixels: Any) -> tuple[Any, float]:
    """Run `predict` in batches of 8. Returns logits [n, labels], and pictures a second without the first batch."""
    outputs, seconds = [], []
    for start in range(0, len(pixels), BATCH):
        begun = time.perf_counter()
        outputs.append(np.asarray(predict(pixels[start : start + BATCH])))
        seconds.append(time.perf_counter() - begun)
    timed = seconds[1:] or seconds
    return np.concatenate(outputs), round(BATCH / float(np.median(timed)), 1)
