"""Fit the graph of a `detector`: which outputs are boxes and scores, and that their numbers are what model.toml says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from slotwise.archive.network.named_examples import named_examples
from slotwise.archive.network.named_tensors import fit_tensors, graph_of
from slotwise.errors import SlotwiseError
from slotwise.model_spec import ModelSpec
from slotwise.worker.inputs.images import Recipe, decode_rgb
from slotwise.worker.tensors.boxes import BoxRules
from slotwise.worker.tensors.named_engine import KINDS

HANDLER = "detector"
SLACK = 1e-3
OUT = 0.5  # of the picture's side: a box may reach so far over its edge
NOISE = 4
LINE = (
    'write in model.toml: output = "probabilities" (or "logits"), labels, and below [options]: boxes = "BOXES",'
    ' scores = "SCORES", form = "corners" (or "centre"), unit = "pixels" (or "fractions")'
)


def fit_detector(spec: ModelSpec, sources: list[Path]) -> tuple[ModelSpec, dict[str, Any]]:
    """Look at the graph and run it. Returns the description with `options.tensors`, and the facts for the report.

    Raises SlotwiseError where nobody says what the numbers are, or they are something else.
    """
    if spec.output not in ("probabilities", "logits") or not spec.labels:
        raise SlotwiseError(f"{spec.name} does not say what its scores are, and of which labels", LINE)
    try:
        rules = BoxRules.of(spec.options, spec.output)
    except ValueError as error:
        raise SlotwiseError(f"{spec.name}: {error}", LINE) from error
    if len(spec.input.shape) != 3 or spec.input.resize or spec.input.ink:
        raise SlotwiseError(
            f"{spec.name}: a detector takes whole pictures, squeezed", "write input.shape = [3, h, w], and no resize and no ink"
        )
    source, graph = graph_of(spec, sources)
    c, h, w = spec.input.shape
    shape = [h, w, c] if spec.input.dtype == "uint8" else [c, h, w]
    constants = {tensor.name for tensor in graph.graph.initializer}
    inputs = [value for value in graph.graph.input if value.name not in constants]
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs)
        raise SlotwiseError(f"{source.name} has the inputs {names}, but a picture is one", "cut the graph")
    name, has = inputs[0].name, _dtype(inputs[0])
    if has != spec.input.dtype:
        raise SlotwiseError(f"{source.name} takes {has}, but model.toml {spec.input.dtype}", f'write input.dtype = "{has}"')
    recipe = Recipe.of(spec.input.model_dump(exclude_none=True))
    pictures = list(named_examples(spec, sources, lambda body, _: [np.asarray(_squeezed(recipe, body))], "[input]"))
    draw = np.random.default_rng(0)
    noise = [draw.integers(0, 256, (h, w, c), np.uint8) for _ in range(NOISE)]
    rows = [{name: _given(spec, pixels.reshape(h, w, c))} for pixels in [*noise, *pictures]]
    plain = {"labels": [], "output": "", "examples": [], "inputs": {name: shape}}
    described, told = fit_tensors(spec.model_copy(update=plain), sources, rows)
    facts = told["tensors"]
    _check_outputs(spec, source.name, facts["outputs"])
    engine = KINDS[facts["engines"][0]](source, 1, [spec.options["boxes"], spec.options["scores"]])
    for row in rows:
        values = engine({name: row[name][None]})
        _check_numbers(source.name, rules, values[spec.options["boxes"]][0], values[spec.options["scores"]][0], (w, h))
    options = {**spec.options, "tensors": described.options["tensors"]}
    return spec.model_copy(update={"options": options}), told


def _dtype(value: Any) -> str:
    from onnx import helper  # noqa: PLC0415  optional

    return str(np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)).name)


def _check_outputs(spec: ModelSpec, file: str, outputs: list[dict[str, Any]]) -> None:
    shapes = {one["name"]: one["shape"] for one in outputs}
    told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    boxes, scores = (spec.options.get(key) for key in ("boxes", "scores"))
    if boxes not in shapes or scores not in shapes:
        raise SlotwiseError(f"{file} has the outputs {told}, and nobody says which are boxes and scores", LINE)
    if len(shapes[boxes]) != 2 or shapes[boxes][1] != 4:
        raise SlotwiseError(f"{file}: its boxes are {shapes[boxes]} a picture, not [n, 4]", LINE)
    if shapes[scores] != [shapes[boxes][0], len(spec.labels)]:
        raise SlotwiseError(
            f"{file}: its scores are {shapes[scores]} a picture, not one for each of {len(spec.labels)} labels and each box",
            "a label for each score; a class for the background has one, too",
        )


def _check_numbers(file: str, rules: BoxRules, boxes: Any, scores: Any, side: tuple[int, int]) -> None:
    """Raise SlotwiseError where boxes or scores of one picture are not what model.toml says."""
    if not rules.logits and (scores.min() < -SLACK or scores.max() > 1 + SLACK):
        told = f"scores from {scores.min():.3g} to {scores.max():.3g}, which are no probabilities"
        raise SlotwiseError(f"{file} gives {told}", 'write in model.toml: output = "logits"')
    chances = 1 / (1 + np.exp(-np.clip(scores, -500, 500))) if rules.logits else scores
    sure = boxes[(chances >= rules.least).any(axis=1)]
    if not len(sure):
        return
    most = float(np.abs(sure).max())
    if rules.unit == "fractions" and most > 1 + OUT:
        raise SlotwiseError(
            f"{file} gives boxes up to {most:.3g}, which are no fractions", 'write below [options]: unit = "pixels"'
        )
    if rules.unit == "pixels" and most > (1 + OUT) * max(side):
        raise SlotwiseError(f"{file} gives boxes up to {most:.3g} in a picture of {side[0]}x{side[1]}", LINE)
    if rules.unit == "pixels" and most <= 1 + SLACK:
        raise SlotwiseError(
            f"{file} gives boxes up to {most:.3g}: less than a pixel", 'write below [options]: unit = "fractions"'
        )
    if rules.form == "corners" and (sure[:, 2:] < sure[:, :2]).any():
        raise SlotwiseError(
            f"{file} gives boxes whose right side is left of their left", 'write below [options]: form = "centre"'
        )
    if rules.form == "centre" and (sure[:, 2:] < 0).any():
        raise SlotwiseError(f"{file} gives boxes of less than no width", 'write below [options]: form = "corners"')


def _squeezed(recipe: Recipe, body: bytes) -> Any:
    """An example as the recipe has it. Raises a SlotError."""
    return recipe.fit(Image.fromarray(decode_rgb(body, max_pixels=recipe.max_pixels)).convert(recipe.mode))


def _given(spec: ModelSpec, pixels: Any) -> Any:
    """Pixels [h, w, c] as the graph takes them."""
    if spec.input.dtype == "uint8":
        return pixels
    channels = spec.input.shape[0]
    mean = np.array(spec.input.mean or [0.0] * channels, np.float32) * 255
    std = np.array(spec.input.std or [1.0] * channels, np.float32) * 255
    return np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1), np.float32)
