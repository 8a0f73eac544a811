"""Snapshots of what is served, as TorchServe writes them: logs/config/TIME-startup.cfg, -snapshot.cfg, -shutdown.cfg.

A snapshot is a config.properties whose key model_snapshot says which models there are. The newest one is what a server without
--ts-config starts from.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slotwise.errors import SlotwiseError
from slotwise.files.disk import written_whole

if TYPE_CHECKING:
    from slotwise.backends.management.models import HostedModel

log = logging.getLogger("slotwise.drop_in")

NUMBER = re.compile("[0-9]{1,10}")
Occasion = Literal["startup", "snapshot", "shutdown"]


@dataclass(frozen=True)
class SnapshotModel:
    """One version of a model, as a snapshot or the key `models` has it. settings: by TorchServe's names."""

    name: str
    version: str
    settings: Mapping[str, Any]

    @property
    def archive(self) -> str:
        """Its file in the model store."""
        return str(self.settings.get("marName", f"{self.name}.mar"))

    def number(self, key: str) -> int | None:
        """One of its numbers; None where it has none."""
        value = self.settings.get(key)
        return value if type(value) is int else None


class Snapshots:
    """Writes them into a folder. keys: of the configuration."""

    def __init__(self, folder: Path, keys: Mapping[str, str]) -> None:
        self.folder, self.keys = folder, dict(keys)

    def save(self, occasion: Occasion, models: Iterable[tuple[HostedModel, bool]]) -> None:
        """Write one. models: every version, and whether it is its model's default. A disk that takes nothing is only logged."""
        import javaproperties  # noqa: PLC0415  optional, the extra gateway

        now = _after(newest(self.folder), datetime.now())  # local, as TorchServe names and sorts them
        name = f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}-{occasion}.cfg"
        described: dict[str, dict[str, Any]] = {}
        for model, default in models:
            described.setdefault(model.name, {})[model.version] = _described(model, default)
        content = {"name": name, "modelCount": len(described), "created": int(time.time() * 1000), "models": described}
        keys = {**self.keys, "model_snapshot": json.dumps(content, indent=2)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with written_whole(self.folder / name) as partial, partial.open("w", encoding="latin-1") as file:
                partial.chmod(0o600)  # load_models may have addresses with a password in them
                javaproperties.dump(keys, file, timestamp=False, comments="Saving snapshot", sort_keys=True)
        except OSError as error:
            log.error("no snapshot can be written to %s: %s", self.folder, error.strerror or error)


def _after(last: Path | None, now: datetime) -> datetime:
    """The time to name a snapshot by: later than the last one's, also where the clock was set back."""
    try:
        return (
            now if last is None else max(now, datetime.strptime(last.name[:17], "%Y%m%d%H%M%S%f") + timedelta(milliseconds=1))
        )
    except ValueError:  # digits that are no time
        return now


def newest(folder: Path) -> Path | None:
    """The newest snapshot in a folder, by the time in its name; None where there is none."""
    return max(folder.glob("[0-9]" * 17 + "-*.cfg"), key=lambda file: (file.name[:17], file.stat().st_mtime), default=None)


def models_of(text: str, key: str) -> list[SnapshotModel]:
    """The models that a `model_snapshot`, or the key `models`, names; default versions first. Raises SlotwiseError."""
    try:
        content = json.loads(text)
        by_name = content["models"] if key == "model_snapshot" else content
        found = [SnapshotModel(name, version, _plain(own)) for name, all_ in by_name.items() for version, own in all_.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SlotwiseError(f"{key} of the configuration cannot be read: {error}", "it is JSON, as on TorchServe") from error
    return sorted(found, key=lambda one: (one.name, not one.settings.get("defaultVersion")))


def _plain(own: Mapping[str, Any]) -> dict[str, Any]:
    """The same with numbers that stand there as texts, as TorchServe takes them."""
    whole = {key: int(value) for key, value in own.items() if isinstance(value, str) and NUMBER.fullmatch(value)}
    return {**own, **whole, **({"marName": own["marName"]} if "marName" in own else {})}


def _described(model: HostedModel, default: bool) -> dict[str, Any]:
    return {
        "defaultVersion": default,
        "marName": model.archive,
        "minWorkers": model.min_workers,
        "maxWorkers": model.max_workers,
        "batchSize": model.batch_size,
        "maxBatchDelay": model.max_batch_delay_ms,
        "responseTimeout": model.response_timeout_s,
        "startupTimeout": model.startup_timeout_s,
        "runtimeType": "python",
    }
