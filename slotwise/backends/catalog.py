"""Find out what a model takes: from the archive that runs, else from the model.toml of its name on this machine."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.inspection import MANIFEST_BYTES, replaced
from slotwise.archive.packaging import DIGESTS
from slotwise.archive.zip_safety import DAMAGE, read_small
from slotwise.bench import bodies
from slotwise.bench.bodies import RequestBody
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.model_spec import load_spec
from slotwise.worker.labels import CLASSIFIERS, SCORELESS, kind_of

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
FLOAT = "float32"
DRAWABLE_SIDE = 32  # pictures this small are easily drawn by hand, and seldom at hand as a file

NamedShape = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True)
class ModelCard:
    """What one model takes. takes: picture, translation, tensor, tensors, table, text, or file where nothing is known.

    examples: by file name. draw: a drawing can be sent; as a tensor it is `side` by `side`. hedge: a late request may be sent
    again. shape, dtype: of a tensor. classes: whether it answers with a label and probabilities. scores: how many a row has
    that it gives to who asks for every one; -1: nobody knows how many, 0: none. own_output: what its ONNX graph calls them.
    columns: of a table, each one's name and kind. inputs, outputs: of named tensors, each one's name, numpy's dtype, and shape.
    content: of which archive, as its workers report it (ArchiveInfo.content); "": nobody says.
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
    content: str = ""
    dtype: str = FLOAT


UNKNOWN = ModelCard(hedge=False)


def model_card(archive: Path, runs: Collection[str] = ()) -> ModelCard | None:
    """The card of an archive; None where it cannot be read, or is none of `runs` (ModelCard.content), where that is known."""
    try:
        about = archive.stat()
    except OSError:
        return None
    found = _model_card(archive, (about.st_mtime_ns, about.st_ino))
    return None if found is None or (runs and found.content not in runs) else found


def inspected_card(info: ArchiveInfo) -> ModelCard:
    """The card of what was inspected. Raises SlotwiseError where another archive has taken its place since."""
    card = model_card(info.path, [info.content])
    if card is None:
        raise replaced(info)
    return card


def described_card(name: str) -> ModelCard:
    """The card by the model.toml of this name on this machine, where no archive is there."""
    try:
        spec = load_spec(project.model_folder(name)).model_dump()
    except SlotwiseError:
        return UNKNOWN
    return _card({"model": spec}, LANGUAGES, name)


@lru_cache(maxsize=256)
def _model_card(archive: Path, _changed: tuple[int, int]) -> ModelCard | None:
    carried = _carried(archive)
    return carried and _card(*carried)


def _card(about: Mapping[str, Any], languages: list[str], examples: str, content: str = "") -> ModelCard:
    spec = about["model"]
    scores = about.get("scores")
    takes = INPUTS.get(Path(spec.get("handler", "")).stem, "file")
    shape = spec.get("input", {}).get("shape", [])
    dtype = spec.get("input", {}).get("dtype", FLOAT) if takes == "tensor" else FLOAT
    return ModelCard(
        takes=takes,
        shape=tuple(shape) if takes == "tensor" else (),
        classes=Path(spec.get("handler", "")).stem in CLASSIFIERS and kind_of(spec) not in SCORELESS,
        scores=(len(spec.get("labels", [])) or -1) if isinstance(scores, dict) else 0,
        own_output=str(scores.get("output", "")) if isinstance(scores, dict) else "",
        description=spec.get("description", ""),
        draw=takes in ("picture", "tensor") and dtype == FLOAT and len(shape) == 3 and max(shape) <= DRAWABLE_SIDE,
        side=shape[-1] if shape else 0,
        languages=languages if takes == "translation" else [],
        examples=_examples(examples),
        hedge=bool(spec.get("hedge", True)),
        inputs=_named(spec, "inputs") if takes == "tensors" else (),
        outputs=_named(spec, "outputs") if takes == "tensors" else (),
        columns=tuple((one["name"], one["kind"]) for one in spec.get("input", {}).get("columns", [])),
        content=content,
        dtype=dtype,
    )


def _named(spec: Mapping[str, Any], part: str) -> tuple[NamedShape, ...]:
    listed = spec.get("options", {}).get("tensors", {}).get(part, [])
    return tuple((one["name"], one["dtype"], tuple(one["shape"])) for one in listed)


def _carried(archive: Path) -> tuple[Mapping[str, Any], list[str], str, str] | None:
    """The archive's slotwise.json, the languages of its weights, itself, and its content; None where it cannot be read.

    Nothing is known of what an archive of another tool takes.
    """
    content = ""
    try:
        with zipfile.ZipFile(archive) as mar:
            if DIGESTS in mar.namelist():
                content = hashlib.sha256(read_small(mar, DIGESTS, MANIFEST_BYTES)).hexdigest()
            about = json.loads(read_small(mar, "slotwise.json"))
            weights = json.loads(read_small(mar, WEIGHTS)) if WEIGHTS in mar.namelist() else {}
            about = {**about, "model": dict(about["model"])}
            return about, list(weights.get("languages", LANGUAGES)), str(archive), content
    except (LookupError, TypeError, json.JSONDecodeError, RuntimeError):
        return {"model": {}}, [], str(archive), content
    except DAMAGE:
        return None


def _examples(model: str) -> dict[str, RequestBody]:
    """The model's own example bodies by file name."""
    try:
        return {body.name: body for body in bodies.examples(model)}
    except SlotwiseError:
        return {}
