"""Run a network once in every form of its weights, so that the build tells what cannot serve, and not a worker's log."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from slotwise import console
from slotwise.archive.make_script import installed_versions
from slotwise.archive.network.network_output import check_output
from slotwise.errors import SlotwiseError
from slotwise.model_spec import ModelSpec
from slotwise.worker.environment.settings import Settings
from slotwise.worker.separability.mates import LOUD

INT8 = "openvino_int8"  # how far it is from fp32 is measured elsewhere (network/int8.py)
ENGINES = {
    "state_dict": ("torch",),
    "torchscript": ("torch",),
    "export": ("torch",),
    "onnx": ("onnxruntime", "openvino"),
    INT8: ("openvino",),
}
MARKER = "trial.json"
QUIET = 3  # rows before the loud ones
PARTS = slice(None, QUIET), slice(QUIET, None)
MOST_APART = 0.01  # of the largest number: what fp32 on another engine may make of it


def run_every_form(spec: ModelSpec, sources: list[Path], make_out: Path | None = None) -> dict[str, list[str]]:
    """Run each form of [weights] on every engine that is installed. Returns the engines that ran each form, by form.

    make_out: the folder of what make.py wrote; the result is kept there, and read from there while the engines are the same.

    Raises SlotwiseError for a form that no engine runs, for outputs that do not fit, and for forms or engines that answer
    otherwise than others. With an author's own handler such a failure is only printed, because it may give the network other
    inputs than those tried here.
    """
    if "tensors" in spec.options:  # it has been run by its names on each engine
        return {}
    marker = make_out / MARKER if make_out else None
    versions = installed_versions()
    if marker and (kept := _kept(marker, versions)) is not None:
        return kept
    outputs_by_form: dict[str, dict[str, Any]] = {}
    files = spec.weights.model_dump(exclude_none=True)
    with _laid_out(spec, sources) as folder, _same_threads():
        for form in [form for form in ENGINES if form in files and (folder / files[form]).is_file()]:
            try:
                if outputs := _run(spec, folder, form):
                    outputs_by_form[form] = outputs
                    _compare(files, outputs_by_form)
            except SlotwiseError as error:
                if not spec.handler.endswith(".py"):
                    raise
                console.say(f"{spec.name}: {error.message} (unless {spec.handler} feeds it otherwise)")
    ran = {form: list(outputs) for form, outputs in outputs_by_form.items()}
    if marker:
        marker.write_text(json.dumps({"forms": ran, "with": versions}), "utf-8")
    return ran


def _kept(marker: Path, versions: dict[str, str]) -> dict[str, list[str]] | None:
    """What an earlier trial found with these versions of the engines; None where there was none."""
    try:
        kept = json.loads(marker.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return dict(kept["forms"]) if kept.get("with") == versions else None


def _run(spec: ModelSpec, folder: Path, form: str) -> dict[str, Any]:
    """What this form gives, by the engines that run it. Raises SlotwiseError where every installed engine fails."""
    from slotwise.worker.engines import samples  # noqa: PLC0415  brings the engine

    model = spec.model_dump(mode="json", exclude_none=True)
    weights = {form: model["weights"][form]}
    if form == "state_dict":
        weights["module"] = model["weights"]["module"]
    inputs = samples.described(model)
    ran: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in [name for name in ENGINES[form] if inputs and importlib.util.find_spec(name)]:
        try:
            outputs = _try(name, folder, {**model, "weights": weights}, inputs)
            check_output(spec, weights[form], outputs)
            ran[name] = outputs
        except SlotwiseError:
            raise
        except Exception as error:
            failed[name] = _reason(error)
    for name, why in failed.items():
        if not ran:
            hint = f"it was given {inputs[0].dtype} {list(inputs[0].shape)}, two items of input.shape: is the batch axis free?"
            raise SlotwiseError(f"{weights[form]} cannot serve on {name}: {why}", hint)
        console.say(f"{spec.name}: {weights[form]} cannot serve on {name}, but on {', '.join(ran)}: {why}")
    return ran


def _compare(files: Mapping[str, str], outputs_by_form: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise SlotwiseError where a form, or an engine, answers otherwise than the first: the profile chooses among them."""
    answers = [
        (f"{files[form]} on {engine}", outputs)
        for form in outputs_by_form
        if form != INT8
        for engine, outputs in outputs_by_form[form].items()
    ]
    if not answers:
        return
    first, expected = answers[0]
    for other, outputs in answers[1:]:
        if outputs.shape != expected.shape:
            how = f"{list(outputs.shape[1:])} numbers a row, not {list(expected.shape[1:])}"
        elif (apart := max(_apart(expected[rows], outputs[rows]) for rows in PARTS)) > MOST_APART:
            how = f"they differ by {apart:.0%} of the largest number"
        else:
            continue
        raise SlotwiseError(
            f"{first} and {other} do not answer alike: {how}",
            "export both from one network, or name only one",
        )


def _apart(expected: Any, outputs: Any) -> float:
    """The largest difference, as a share of the largest number."""
    finite = np.isfinite(expected)
    if (finite != np.isfinite(outputs)).any():
        return float("inf")
    expected, outputs = expected[finite].astype(np.float64), outputs[finite].astype(np.float64)
    return float(np.abs(outputs - expected).max(initial=0) / (np.abs(expected).max(initial=0) or 1))


def _try(name: str, folder: Path, model: dict[str, Any], inputs: list[Any]) -> Any:
    """Run two rows at once, then one alone, as a worker's warm-up does, and loud ones. Raises whatever is wrong.

    Returns all outputs.
    """
    from slotwise.worker.engines import load_engine  # noqa: PLC0415  brings the engine

    precision = "int8" if INT8 in model["weights"] else "fp32"
    threads = len(os.sched_getaffinity(0))
    engine = load_engine(folder, Settings(engine=name, precision=precision, threads=threads, model=model))
    loud = [LOUD * inputs[0]] if inputs[0].dtype.kind == "f" else []
    answers = []
    for rows in [*inputs[:2], *loud]:
        outputs = engine(rows)
        if len(outputs) != len(rows):
            raise ValueError(f"it gives {len(outputs)} outputs for {len(rows)} rows")
        answers.append(np.asarray(outputs))
    labels, scores = len(model.get("labels", [])), answers[0][0].size
    second = (labels, scores) == (2, 1)  # see check_output
    if labels and scores != labels and not second and not model["handler"].endswith(".py"):
        raise ValueError(f"it gives {scores} scores, but there are {labels} labels")
    return np.concatenate(answers)


def _reason(error: Exception) -> str:
    """The line of an error that says what happened: the first, but the last `...Error: ` where there are such lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    telling = [line for line in lines if re.match(r"\w+(Error|Exception): ", line)]
    return (telling or lines)[-1 if telling else 0][:200]


@contextmanager
def _laid_out(spec: ModelSpec, sources: list[Path]) -> Iterator[Path]:
    """The files of the weights in one folder, as links, each from the first source that has it."""
    with tempfile.TemporaryDirectory(prefix="slotwise-trial-") as name:
        for file in spec.weights.files():
            existing = next((source / file for source in sources if (source / file).exists()), None)
            if existing is not None:
                target = Path(name, file)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(existing.resolve())
        yield Path(name)


@contextmanager
def _same_threads() -> Iterator[None]:
    """Restore torch's number of threads: what this process trains later must not depend on a trial before it."""
    before = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
    try:
        yield
    finally:
        if before is not None:
            sys.modules["torch"].set_num_threads(before)
