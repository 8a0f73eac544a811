"""Write the winning setting into its profile, comments kept, and render the config files again."""

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
    """Raise SlotwiseError unless the server runs the profile of the file that `write_setting` would change."""
    own = load_profile(record.profile, record.overrides, {}, cores=0)
    if own.model_dump() != record.effective_profile().model_dump():
        raise SlotwiseError(
            f"--apply: {record.name} was not started with what {project.profile_file(record.profile)} says",
            f"`slotwise apply {record.profile}` brings it there; or tune without --apply",
        )


def write_setting(setting: TrialSetting, model: str, profile: str, cores: int) -> list[str]:
    """Write the setting into profiles/PROFILE.toml of the current folder, and render the config files.

    A key that the model's own [profiles.PROFILE] holds is changed there instead. Returns what was changed, one line a key
    and file.
    """
    keys: dict[str, Any] = {
        "batch_size": setting.batch_size,
        "max_batch_delay_ms": setting.max_batch_delay,
        "initial_workers": setting.workers,
        "threads": 0 if setting.threads == max(1, cores // setting.workers) else setting.threads,
    }
    keys |= {key: value for key, value in (("engine", setting.engine), ("precision", setting.precision)) if value}
    path = _profile_here(profile)
    changed = []
    model_folder = project.models().get(model)
    if model_folder is not None:
        model_toml = model_folder / "model.toml"
        spec = _read(model_toml)
        wishes = spec.get("profiles", {}).get(profile, {})
        of_model = {key: value for key, value in keys.items() if key in wishes}
        if of_model:
            changed += _set(wishes, of_model, model_toml)
            _write(model_toml, spec)
        keys = {key: value for key, value in keys.items() if key not in of_model}
    document = _read(path)
    for key, value in keys.items():
        changed += _set(document.setdefault(str(section_of(key)), {}), {key: value}, path)
    _write(path, document)
    load_profile(profile, environ={})
    if setting.max_batch_delay != int(setting.max_batch_delay):
        return [*changed, "the .properties files stay as they are: TorchServe and MMS count whole milliseconds"]
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
