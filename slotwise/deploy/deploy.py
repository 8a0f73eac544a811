"""Get the archive that a person names (by model, file or URL), and register it with the settings of a profile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise import project
from slotwise.archive.build import ArchiveInfo, build, file_sha256, inspect, outdated
from slotwise.archive.download import fetch, is_url
from slotwise.errors import SlotwiseError
from slotwise.model_spec import load_spec

if TYPE_CHECKING:
    from slotwise.client.management import LiveModel, ManagementClient
    from slotwise.profiles.profile import Profile


def obtain(
    what: str, model_store: Path, *, sha256: str | None = None, say: Callable[[str], None] = lambda message: None
) -> ArchiveInfo:
    """The archive of a model's name, folder, .mar file or URL, verified and in the model store; built where it is missing.

    Raises SlotwiseError for an archive that is not what was built.
    """
    model_store.mkdir(parents=True, exist_ok=True)
    if is_url(what):
        return inspect(fetch(what, sha256, model_store), need_digests=False)
    if what.endswith(".mar"):
        path = Path(what) if Path(what).exists() else model_store / what
        info = inspect(path, need_digests=False)
        return info if path.resolve().parent == model_store.resolve() else _copy(info, model_store)
    stored = model_store / f"{what}.mar"
    if "/" not in what and what not in project.models() and not (Path(what) / "model.toml").is_file() and stored.is_file():
        return inspect(stored, need_digests=False)
    folder = project.model_folder(what)
    path = model_store / f"{load_spec(folder).name}.mar"
    if not path.is_file():
        say(f"building {path.name}")
        path = build(what, model_store)
    info = inspect(path)
    if changed := outdated(info, folder):
        say(f"{path.name} was built before {changed} was changed: `slotwise build {what}` takes the change over")
    return info


def registration(info: ArchiveInfo, profile: Profile, overrides: Mapping[str, str]) -> dict[str, Any]:
    """The settings to register this model with: batch_size, max_batch_delay, initial_workers, response_timeout.

    overrides: the keys that `--set` and the environment set (`profile` has them already). They are stronger than the model's
    own wishes ([profiles.NAME] of its model.toml).
    """
    wishes: Mapping[str, Any] = info.model.get("profiles", {}).get(profile.name, {})
    return profile.for_model({key: value for key, value in wishes.items() if key not in overrides}).registration()


def preloaded(infos: Iterable[ArchiveInfo], profile: Profile, overrides: Mapping[str, str]) -> dict[str, Any]:
    """The models that TorchServe loads at its start where the profile keeps its model API off, as its `models` key."""
    models: dict[str, Any] = {}
    for info in infos:
        settings = registration(info, profile, overrides)
        workers = settings["initial_workers"]
        models[info.name] = {
            info.version: {
                "defaultVersion": True,
                "marName": info.path.name,
                "minWorkers": workers,
                "maxWorkers": workers,
                "batchSize": settings["batch_size"],
                "maxBatchDelay": settings["max_batch_delay"],
                "responseTimeout": settings["response_timeout"],
            }
        }
    return models


def deploy(
    client: ManagementClient,
    info: ArchiveInfo,
    settings: Mapping[str, Any],
    progress: Callable[[int, int], None] = lambda ready, requested: None,
    *,
    preloaded: bool = False,
) -> LiveModel:
    """Register an archive of the model store and wait until all its workers are READY. preloaded: it is registered already.

    Raises SlotwiseError, with the model unregistered again, where it does not become ready.
    """
    if not preloaded:
        client.register(info.path.name, **settings)
    try:
        return client.wait_ready(info.name, settings["initial_workers"], version=info.version, progress=progress)
    except BaseException:
        with suppress(SlotwiseError):
            client.unregister(info.name, info.version)
        raise


def _copy(info: ArchiveInfo, model_store: Path) -> ArchiveInfo:
    """The same archive inside the model store: the server may load from nowhere else."""
    target = model_store / info.path.name
    if not target.exists():
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            shutil.copyfile(info.path, partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    elif file_sha256(target) != info.sha256:
        raise SlotwiseError(f"{target} is there already, with another content", "give yours another name, or delete that one")
    return inspect(target, need_digests=False)
