"""Where a model's archive is: NAME.mar in the model store, and NAME-VERSION.mar beside it where there are two versions."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from slotwise.archive.packaging import MANIFEST
from slotwise.archive.zip_safety import DAMAGE, read_small
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.model_spec import load_spec


def archive_file(store: Path, name: str, version: str) -> Path:
    """Where this version of a model is, or is to be built: NAME.mar, or NAME-VERSION.mar beside another version's NAME.mar."""
    usual, own = store / f"{name}.mar", store / f"{name}-{version}.mar"
    return own if own.is_file() or _version(usual) not in (None, version) else usual


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


def is_stored(name: str, store: Path) -> bool:
    """Whether a name means an archive of the store that no folder here describes."""
    described = "/" in name or name in project.models() or (Path(name) / "model.toml").is_file()
    return not described and (store / f"{name}.mar").is_file()


def _version(archive: Path) -> str | None:
    """The version in an archive's manifest; None where there is no archive, or one that nobody can use."""
    try:
        with zipfile.ZipFile(archive) as source:
            return str(json.loads(read_small(source, MANIFEST))["model"]["modelVersion"])
    except (*DAMAGE, KeyError, TypeError, RuntimeError):  # RuntimeError: encrypted, or nested too deeply
        return None
