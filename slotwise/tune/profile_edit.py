"""The winner into the profile, comments kept, and the config files rendered again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise import project
from slotwise.errors import SlotwiseError
from slotwise.profiles import render
from slotwise.profiles.profile import load_profile, section_of
from slotwise.tune.space import TrialSetting

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

    from slotwise.server.record import ServerRecord


def check_own(record: ServerRecord) -> None:
    """Raise SlotwiseError unless the server runs the profile that `apply` would write to: another file may have its name."""
    own = load_profile(record.profile, record.overrides, {}, cores=0)
    if own.model_dump() != record.effective_profile().model_dump():
        raise SlotwiseError(
            f"--apply: {record.name} was not started with what {project.profile_file(record.profile)} says",
            f"`slotwise apply {record.profile}` brings it there; or tune without --apply",
        )


def write_setting(setting: TrialSetting, model: str, profile: str, cores: int) -> list[str]:
    """Write the setting into profiles/PROFILE.toml of the current folder, or, where the model's own [profiles.PROFILE] says
    otherwise, there; then render. Returns what was changed, one line a key and file.
    """
    keys: dict[str, Any] = {
        "batch_size": setting.batch_size,
        "max_batch_delay_ms": setting.max_batch_delay,
        "initial_workers": setting.workers,
        "threads": 0 if setting.threads == max(1, cores // setting.workers) else setting.threads,
    }
    keys |= {key: value for key, value in (("engine", setting.engine), ("precision", setting.precision)) if value}
    path, own = _profile_here(profile), project.models().get(model)
    document, changed = _read(path), []
    if own is not None:
        spec = _read(own / "model.toml")
        wishes = spec.get("profiles", {}).get(profile, {})
        taken = {key: value for key, value in keys.items() if key in wishes}
        changed += _set(wishes, taken, own / "model.toml")
        _write(own / "model.toml", spec) if taken else None
        keys = {key: value for key, value in keys.items() if key not in taken}
    for key, value in keys.items():
        changed += _set(document.setdefault(str(section_of(key)), {}), {key: value}, path)
    _write(path, document)
    load_profile(profile, environ={})
    return changed + [f"{file}: rendered" for file in render.write(Path.cwd())]


def _profile_here(profile: str) -> Path:
    """The profile's file below the current folder; a copy, where it comes from somewhere else."""
    source = project.profile_file(profile)
    if source.is_relative_to(Path.cwd()):
        return source
    here = Path.cwd() / "profiles" / source.name
    here.parent.mkdir(exist_ok=True)
    shutil.copy(source, here)
    return here


def _set(table: Any, values: dict[str, Any], path: Path) -> list[str]:
    changed = []
    for key, value in values.items():
        if table.get(key) != value:
            changed.append(f"{path.name}: {key} = {value} (was {table.get(key, 'not set')})")
            table[key] = value
    return changed


def _read(path: Path) -> TOMLDocument:
    import tomlkit  # noqa: PLC0415  optional

    return tomlkit.parse(path.read_text("utf-8"))


def _write(path: Path, document: TOMLDocument) -> None:
    import tomlkit  # noqa: PLC0415  optional

    partial = path.with_suffix(".partial")
    partial.write_text(tomlkit.dumps(document), "utf-8")
    partial.replace(path)
