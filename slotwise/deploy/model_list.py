"""Fill a model store from a list of archives, as the init container of a pod does.

[[archive]]
file = "/models/digits.mar"      a file of this machine; with sha256 only if it is that
[[archive]]
url = "https://..."              or s3://BUCKET/NAME.mar; refused without its digest
sha256 = "..."
[[archive]]
model = "translation"            a model of slotwise, built here with weights by id or path
weights = "facebook/m2m100_418M"
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, model_validator

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.build import LEAST_MIB, build
from slotwise.archive.download import shown
from slotwise.archive.input_digests import changed_input
from slotwise.archive.inspection import inspect
from slotwise.archive.store import archive_file
from slotwise.deploy.deploy import obtain
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.files.disk import check_writable
from slotwise.model_spec import load_spec, parse, read_toml


class ArchiveSource(BaseModel):
    """One archive: exactly one of file, url and model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str = ""
    url: str = ""
    sha256: str = ""
    model: str = ""
    weights: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> ArchiveSource:
        if sum(map(bool, (self.file, self.url, self.model))) != 1:
            raise ValueError("an archive has one of file, url and model")
        if self.url and not self.sha256:
            raise ValueError("a url comes with its sha256")
        if self.model and self.sha256:
            raise ValueError("a model is built here: sha256 belongs to a file or a url")
        if self.weights and not self.model:
            raise ValueError("weights belong to a model")
        return self


class ModelList(BaseModel):
    """The content of a list file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    archive: list[ArchiveSource]


def fill(path: Path, store: Path, say: Callable[[str], None] = lambda message: None) -> list[ArchiveInfo]:
    """Put every archive of the list at `path` into `store`, verified; what is there already, and is just that, stays.

    Raises SlotwiseError for a list with a fault, and at the first archive that cannot be had.
    """
    entries = parse(ModelList, read_toml(path), path).archive
    check_writable(store, LEAST_MIB)
    try:
        store.mkdir(parents=True, exist_ok=True)
        return [_put(entry, store, say) for entry in entries]
    except OSError as error:
        raise SlotwiseError(f"{store} cannot be filled: {error}", "is it a folder that this user may write to?") from error


def _put(entry: ArchiveSource, store: Path, say: Callable[[str], None]) -> ArchiveInfo:
    say(entry.file or (entry.url and shown(entry.url)) or f"{entry.model} {entry.weights or ''}")
    if entry.model:
        return _there(entry, store) or inspect(build(entry.model, store, weights=entry.weights))
    return obtain(entry.file or entry.url, store, sha256=entry.sha256 or None, say=say)


def _there(entry: ArchiveSource, store: Path) -> ArchiveInfo | None:
    """The archive of that model with those weights, where the store has it; None where it has another, or nobody tells."""
    folder = project.model_folder(entry.model)
    spec = load_spec(folder)
    path = archive_file(store, spec.name, spec.version)
    if not path.is_file() or (entry.weights and Path(entry.weights).exists()):
        return None  # what a path holds may have changed: the build knows
    info = inspect(path)
    try:
        report = json.loads(path.with_name(f"{path.stem}.report.json").read_text("utf-8"))
        wanted = (info.sha256, entry.weights, None)
        same = (report["sha256"], report["weights"], report.get("int8")) == wanted
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return info if same and not changed_input(info.inputs, folder, spec) and info.version == spec.version else None
