"""Find out what a model takes, for the page: from its archive, else from the model.toml of its name on this machine."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from slotwise.archive.zip_safety import DAMAGE, read_small
from slotwise.bench import bodies
from slotwise.bench.bodies import RequestBody
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.model_spec import load_spec
from slotwise.worker.labels import CLASSIFIERS

INPUTS = {
    "image_classifier": "picture",
    "captioner": "picture",
    "translator": "translation",
    "tensor_classifier": "tensor",
    "tabular": "table",
    "text_classifier": "text",
    "embedder": "text",
    "tensors": "tensors",
    "detector": "picture",
}
WEIGHTS = "model/slotwise.json"  # what a text model's build wrote down about its weights: its languages, for one
LANGUAGES = ["en", "ja", "fr", "de"]
DRAWABLE_SIDE = 32  # pictures this small are easily drawn by hand, and seldom at hand as a file

NamedShape = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True)
class ModelCard:
    """What one model takes. takes: picture, translation, tensor, tensors, table, text, or file where nothing is known.

    examples: by file name. draw: a drawing can be sent; as a tensor it is `side` by `side`. hedge: a late request may be sent
    again. shape: of a tensor. classes: whether it answers with a label and probabilities. scores: how many a row has that it
    gives to who asks for every one; -1: nobody knows how many, 0: it gives none. own_output: what its ONNX graph calls them.
    columns: of a table, each one's name and kind. inputs, outputs: of named tensors, each one's name, numpy's dtype, and shape.
    """

    takes: str = "file"
    shape: tuple[int, ...] = ()
    classes: bool = False
    scores: int = 0
    own_output: str = ""
    description: str = ""
    draw: bool = False
    side: int = 0
    languages: list[str] = field(default_factory=list)
    examples: dict[str, RequestBody] = field(default_factory=dict)
    hedge: bool = True
    columns: tuple[tuple[str, str], ...] = ()
    inputs: tuple[NamedShape, ...] = ()
    outputs: tuple[NamedShape, ...] = ()


def model_card(name: str, archive: Path) -> ModelCard:
    """The card of a model; the empty card where nothing is known of it."""
    try:
        return _model_card(name, archive, archive.stat().st_mtime_ns)
    except OSError:
        return _model_card(name, None, 0)


@lru_cache(maxsize=256)
def _model_card(name: str, archive: Path | None, _changed: int) -> ModelCard:
    about, languages = _carried(archive) if archive else _described(name)
    spec = about["model"]
    scores = about.get("scores")
    takes = INPUTS.get(Path(spec.get("handler", "")).stem, "file")
    shape = spec.get("input", {}).get("shape", [])
    return ModelCard(
        takes=takes,
        shape=tuple(shape) if takes == "tensor" else (),
        classes=Path(spec.get("handler", "")).stem in CLASSIFIERS,
        scores=(len(spec.get("labels", [])) or -1) if isinstance(scores, dict) else 0,
        own_output=str(scores.get("output", "")) if isinstance(scores, dict) else "",
        description=spec.get("description", ""),
        draw=takes in ("picture", "tensor") and len(shape) == 3 and max(shape) <= DRAWABLE_SIDE,
        side=shape[-1] if shape else 0,
        languages=languages if takes == "translation" else [],
        examples=_examples(str(archive) if archive else name),
        hedge=bool(spec.get("hedge", True)),
        inputs=_named(spec, "inputs") if takes == "tensors" else (),
        outputs=_named(spec, "outputs") if takes == "tensors" else (),
        columns=tuple((one["name"], one["kind"]) for one in spec.get("input", {}).get("columns", [])),
    )


def _named(spec: Mapping[str, Any], part: str) -> tuple[NamedShape, ...]:
    listed = spec.get("options", {}).get("tensors", {}).get(part, [])
    return tuple((one["name"], one["dtype"], tuple(one["shape"])) for one in listed)


def _carried(archive: Path) -> tuple[Mapping[str, Any], list[str]]:
    """The archive's slotwise.json and the languages of its weights; nothing known for an archive of another tool."""
    try:
        with zipfile.ZipFile(archive) as mar:
            about = json.loads(read_small(mar, "slotwise.json"))
            weights = json.loads(read_small(mar, WEIGHTS)) if WEIGHTS in mar.namelist() else {}
            return {**about, "model": dict(about["model"])}, list(weights.get("languages", LANGUAGES))
    except (*DAMAGE, LookupError, TypeError, RuntimeError):
        return {"model": {}}, []


def _described(name: str) -> tuple[Mapping[str, Any], list[str]]:
    try:
        return {"model": load_spec(project.model_folder(name)).model_dump()}, LANGUAGES
    except SlotwiseError:
        return {"model": {}}, []


def _examples(model: str) -> dict[str, RequestBody]:
    """The model's own example bodies by file name."""
    try:
        return {body.name: body for body in bodies.examples(model)}
    except SlotwiseError:
        return {}
