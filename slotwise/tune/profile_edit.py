"""Write the winning setting into its model's model.toml, comments kept, and render the config files again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.files.disk import write_together
from slotwise.profiles import render
from slotwise.profiles.profile import load_profile
from slotwise.tune.space import TrialSetting

if TYPE_CHECKING:
    from slotwise.server.record import ServerRecord


def check_own(record: ServerRecord) -> None:
    """Raise SlotwiseError unless the server runs the profile of the file that `write_setting` would change."""
    own = load_profile(record.profile, record.overrides, {}, cores=0)
    if own.model_dump() != record.effective_profile().model_dump():
        raise SlotwiseError(
            f"--apply: {record.name} was not started with what {project.profile_file(record.profile)} says",
            f"`slotwise apply {record.profile}` brings it there; or tune without --apply",
        )


def check_folder(model: str) -> Path:
    """The model.toml that `write_setting` changes. Raises SlotwiseError where the model has no folder in this project."""
    folder = project.models().get(model)
    if folder is None or not folder.resolve().is_relative_to(Path.cwd()):
        raise SlotwiseError(
            f"--apply: {model} has no folder in this project, and its setting belongs into its model.toml",
            "tune without --apply, and give the winner's numbers to `slotwise serve --set KEY=VALUE`",
        )
    return folder / "model.toml"


def write_setting(setting: TrialSetting, model: str, profile: str, cores: int) -> list[str]:
    """Write the setting into the model's own [profiles.PROFILE], and render the config files. The profile is for all models.

    Only what is not as the profile has it is written. Returns what was changed, one line a key and file.
    """
    import tomlkit  # noqa: PLC0415  optional

    keys: dict[str, Any] = {
        "batch_size": setting.batch_size,
        "max_batch_delay_ms": setting.max_batch_delay,
        "initial_workers": setting.workers,
        "threads": 0 if setting.threads == max(1, cores // setting.workers) else setting.threads,
    }
    keys |= {key: value for key, value in (("engine", setting.engine), ("precision", setting.precision)) if value}
    path = check_folder(model)
    spec = tomlkit.parse(path.read_text("utf-8"))
    shared = load_profile(profile, environ={}, cores=0)
    own = spec.setdefault("profiles", {}).setdefault(profile, {})
    changed = _set(own, {key: value for key, value in keys.items() if key in own or value != getattr(shared, key)}, path)
    shared.for_model(own.unwrap(), str(path))
    with _as_it_was(path):
        if changed:
            write_together({path: tomlkit.dumps(spec)})
        if setting.max_batch_delay != int(setting.max_batch_delay):
            return [*changed, "the .properties files stay as they are: TorchServe and MMS count whole milliseconds"]
        return changed + [f"{file}: rendered" for file in render.write(Path.cwd())]


@contextmanager
def _as_it_was(path: Path) -> Iterator[None]:
    """Put the file back where what is done with it fails; on a full disk, too."""
    path = path.resolve()  # a link stays one
    before = path.with_name(f".{path.name}.before")
    try:
        shutil.copy(path, before)
        try:
            yield
        except BaseException:
            before.replace(path)
            raise
    finally:
        before.unlink(missing_ok=True)


def _set(table: Any, values: dict[str, Any], path: Path) -> list[str]:
    changed = []
    for key, value in values.items():
        if table.get(key) != value:
            changed.append(f"{path.name}: {key} = {value} (was {table.get(key, 'not set')})")
            table[key] = value
    return changed
