"""Keep what `register` and `scale` set of an archive of another tool: in a TOML file beside it, for `serve` and `apply`.

A model of ours says in its model.toml what it wants. An archive of another tool has no such place but its model-config.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.errors import SlotwiseError
from slotwise.files.disk import written_whole
from slotwise.model_spec import read_toml

ENDING = ".settings.toml"
KEYS = {"batch_size": int, "max_batch_delay_ms": (int, float), "initial_workers": int}
HEAD = "# What `slotwise register` and `slotwise scale` set for {name}; `serve`, `register` and `apply` take it over.\n"


def settings_file(archive: Path) -> Path:
    """Where an archive's settings are kept."""
    return archive.with_name(f"{archive.stem}{ENDING}")


def kept_settings(info: ArchiveInfo) -> dict[str, Any]:
    """What is kept for this archive; nothing for a model of ours. Raises SlotwiseError where the file cannot be read."""
    path = settings_file(info.path)
    if info.model or not path.is_file():
        return {}
    settings = read_toml(path)
    for key, value in settings.items():
        if key not in KEYS or isinstance(value, bool) or not isinstance(value, KEYS[key]) or value < (key == "initial_workers"):  # type: ignore[arg-type]
            raise SlotwiseError(f"{path}: {key} = {value!r} is no setting of an archive", f"known keys: {', '.join(KEYS)}")
    return settings


def keep_settings(info: ArchiveInfo, settings: Mapping[str, Any]) -> Path | None:
    """Keep these values beside the archive, over those that are kept already. Returns the file; None for a model of ours."""
    settings = {key: value for key, value in settings.items() if (key, value) != ("initial_workers", 0)}  # no profile has 0
    if info.model or not settings:
        return None
    path = settings_file(info.path)
    lines = [f"{key} = {value}\n" for key, value in sorted({**kept_settings(info), **settings}.items())]
    with written_whole(path) as unfinished:
        unfinished.write_text(HEAD.format(name=info.path.name) + "".join(lines), "utf-8")
    return path
