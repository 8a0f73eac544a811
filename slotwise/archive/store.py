"""Where a model's archive is: NAME.mar in the model store, and NAME-VERSION.mar beside it where there are two versions."""

from __future__ import annotations

import json
import shlex
import zipfile
from pathlib import Path
from typing import NamedTuple

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.input_digests import changed_input
from slotwise.archive.packaging import MANIFEST
from slotwise.archive.zip_safety import DAMAGE, read_small
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.model_spec import load_spec

UNREADABLE = (*DAMAGE, KeyError, TypeError, AttributeError, RuntimeError)  # RuntimeError: encrypted, or nested too deeply


class _Stored(NamedTuple):
    """What a file of the store holds. ours: `slotwise build` made it."""

    name: str
    version: str
    ours: bool


def archive_file(store: Path, name: str, version: str) -> Path:
    """Where this version of a model is, or is to be built: NAME.mar, or NAME-VERSION.mar beside another version's NAME.mar.

    Raises SlotwiseError where another model's archive has that place, or one of another tool.
    """
    usual, own = store / f"{name}.mar", store / f"{name}-{version}.mar"
    held, beside = _held(usual), _held(own)
    if beside and beside.ours and beside.name == name:
        return own
    if held is None or (held.ours and held[:2] == (name, version)):
        return usual
    for path, other in ((usual, held), (own, beside)):
        if other and not (other.ours and other.name == name):
            what = f"the archive of another model, {other.name!r}" if other.ours else "an archive of another tool"
            raise SlotwiseError(f"{path} is {what}", f"move it, call the model {name} otherwise, or build with --out FOLDER")
    return own


def archive_of(model: str) -> Path:
    """The archive of what a person names: a .mar file, or a model by its name or folder whose archive is in model_store/."""
    if model.endswith((".mar", ".model", ".war")) or Path(model).is_file():
        return Path(model)
    store = Path("model_store")
    if is_stored(model, store):
        return store / f"{model}.mar"
    spec = load_spec(project.model_folder(model))
    built = archive_file(store, spec.name, spec.version)
    if not built.is_file():
        raise SlotwiseError(f"{model} is not built", f"`slotwise build {model}` makes {built}")
    return built


def built_before(model: str, info: ArchiveInfo) -> str:
    """A line where a model's folder is no longer what its archive was built from; "" where it is, or an archive was named."""
    if model.endswith((".mar", ".model", ".war")) or Path(model).is_file() or is_stored(model, Path("model_store")):
        return ""
    folder = project.model_folder(model)
    changed = changed_input(info.inputs, folder, load_spec(folder))
    told = (
        f"{info.path.name} was built before {changed} was changed: `slotwise build {shlex.quote(model)}` takes the change over"
    )
    return told if changed else ""


def is_stored(name: str, store: Path) -> bool:
    """Whether a name means an archive of the store that no folder here describes."""
    described = "/" in name or name in project.models() or (Path(name) / "model.toml").is_file()
    return not described and (store / f"{name}.mar").is_file()


def _held(archive: Path) -> _Stored | None:
    """What an archive's manifest says of it; None where there is no archive, or a damaged one of which its report tells.

    Raises SlotwiseError for one that cannot be read, and for what no report says that a build made it.
    """
    try:
        with zipfile.ZipFile(archive) as source:
            if MANIFEST not in source.namelist():  # laid out for Multi Model Server before 1.0, or no model archive
                return _Stored("", "", False)
            model = json.loads(read_small(source, MANIFEST))["model"]
            return _Stored(str(model["modelName"]), str(model.get("modelVersion")), "slotwise.json" in source.namelist())
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        if not isinstance(error, OSError) and _reported(archive):
            return None
        why = getattr(error, "strerror", None) or "it is damaged, or no archive, and no report beside it says whose it is"
        raise SlotwiseError(f"{archive} cannot be read: {why}", "move it, or build with --out FOLDER") from error


def _reported(archive: Path) -> bool:
    """Whether the report beside it says that a build made this file."""
    try:
        return bool(json.loads(archive.with_name(f"{archive.stem}.report.json").read_text("utf-8"))["archive"] == archive.name)
    except (OSError, ValueError, KeyError, TypeError):
        return False
