"""Get the archive that a person names (by model, file or URL), and register it with the settings of a profile."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.build import build
from slotwise.archive.download import another_archive, fetch, is_url
from slotwise.archive.guarding.foreign import lacks
from slotwise.archive.guarding.guard_proof import GuardProof
from slotwise.archive.guarding.guarded import check_replaced, guard, guards, proof_of
from slotwise.archive.inspection import inspect
from slotwise.archive.store import archive_file, built_before, is_stored
from slotwise.deploy.kept_settings import kept_settings
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.files.disk import written_whole
from slotwise.model_spec import load_spec
from slotwise.worker.environment.digests import file_sha256

if TYPE_CHECKING:
    from slotwise.client.management import LiveModel, ManagementClient
    from slotwise.profiles.profile import Profile
    from slotwise.server.record import Kind


def obtain(
    what: str,
    model_store: Path,
    *,
    sha256: str | None = None,
    say: Callable[[str], None] = lambda message: None,
    guarded: bool = False,
) -> ArchiveInfo:
    """The archive of a model's name, folder, .mar file or URL, verified and in the model store; built where it is missing.

    sha256: of a file or what a URL leads to; a URL needs one.
    guarded: put a guard around an archive of another tool. Raises SlotwiseError for an archive that is not what was built.
    """
    model_store.mkdir(parents=True, exist_ok=True)
    info = _obtained(what, model_store, sha256, say, guarded)
    if not (guarded and lacks(info)):
        return info
    return _guarded(info, model_store, say)


def _guarded(theirs: ArchiveInfo, model_store: Path, say: Callable[[str], None]) -> ArchiveInfo:
    """The guarded form of an archive of another tool; one that is there already keeps its proof and its terms."""
    target = model_store / f"{theirs.path.stem}-guarded.mar"
    for path in dict.fromkeys([theirs.path.with_name(target.name), target]):
        if path.is_file() and guards(made := inspect(path), theirs):
            proof = proof_of(path) or GuardProof()
            say(f"{path} is the guard of {theirs.path.name}; {proof.sentence()}")
            return made if path.resolve() == target.resolve() else _copy(made, model_store)
    check_replaced(target)
    again = ", anew, since the one that is there was made of another one" if target.is_file() else ""
    say(f"guarding {theirs.path.name}{again}; {GuardProof().sentence()}")
    return inspect(guard(theirs.path, target))


def _obtained(what: str, model_store: Path, sha256: str | None, say: Callable[[str], None], anywhere: bool) -> ArchiveInfo:
    """As `obtain`. anywhere: a file may stay outside the model store."""
    if is_url(what):
        return inspect(fetch(what, sha256, model_store), need_digests=False)
    if what.endswith((".mar", ".model")):
        path = Path(what) if Path(what).exists() or "/" in what else model_store / what
        info = inspect(path, need_digests=False)
        if sha256 and info.sha256 != sha256.lower():
            raise another_archive(str(path), info.sha256)
        return (
            info if (anywhere and lacks(info)) or path.resolve().parent == model_store.resolve() else _copy(info, model_store)
        )
    if is_stored(what, model_store):
        return inspect(model_store / f"{what}.mar", need_digests=False)
    folder = project.model_folder(what)
    spec = load_spec(folder)
    path = archive_file(model_store, spec.name, spec.version)
    if not path.is_file():
        say(f"building {path.name}")
        path = build(what, model_store)
    info = inspect(path)
    if note := built_before(what, info):
        say(note)
    return info


def registration(
    info: ArchiveInfo, profile: Profile, overrides: Mapping[str, str], kind: Kind = "torchserve"
) -> dict[str, Any]:
    """The settings to register this model with: batch_size, max_batch_delay, initial_workers, response_timeout.

    overrides: the keys that `--set` and the environment set (`profile` has them already). They are stronger than the model's
    own wishes ([profiles.NAME] of its model.toml).
    """
    return of_model(info, profile, overrides, kind).registration()


def of_model(info: ArchiveInfo, profile: Profile, overrides: Mapping[str, str], kind: Kind = "torchserve") -> Profile:
    """The profile as the model in this archive wants it, or as it was set for it. overrides: as in `registration`."""
    wishes = {**info.wishes(profile.name), **kept_settings(info)}
    own = {key: value for key, value in wishes.items() if key not in overrides}
    return profile.for_model(own, info.path.name).on(kind)


def foreign_note(info: ArchiveInfo, overrides: Mapping[str, Any]) -> str:
    """What a person should know of the batch size of an archive of another tool; "" where somebody has chosen it."""
    if not info.foreign or "batch_size" in {*overrides, *kept_settings(info)} or "batchSize" in info.config:
        return ""
    return f"{info.path.name} was not built by slotwise: batch size 1, since its handler may answer once a batch"


def requirements_note(info: ArchiveInfo) -> str:
    """What a person should know of packages that the archive wants installed; "" where it names none."""
    if not info.requirements:
        return ""
    return f"{info.path.name}: nobody installs its {info.requirements}: its packages must be there where the server runs"


def preloaded(
    infos: Iterable[ArchiveInfo], profile: Profile, overrides: Mapping[str, str], names: Iterable[str] = ()
) -> dict[str, Any]:
    """The models that TorchServe loads at its start where the profile keeps its model API off, as its `models` key.

    names: what they are registered as, where they are. Raises SlotwiseError where one is not its archive's own.
    """
    models: dict[str, Any] = {}
    for info, name in zip_longest(infos, names):
        if name not in (None, info.name):
            hint = f"a profile with model_api registers it as {name}"
            raise SlotwiseError(f"{info.path.name} is registered as {name}, but is called {info.name}", hint)
        settings = registration(info, profile, overrides)
        workers = settings["initial_workers"]
        versions = models.setdefault(info.name, {})
        versions[info.version] = {
            "defaultVersion": not versions,  # the first one
            "marName": info.path.name,
            "minWorkers": workers,
            "maxWorkers": workers,
            "batchSize": settings["batch_size"],
            "maxBatchDelay": settings["max_batch_delay"],
            "responseTimeout": settings["response_timeout"],
        }
    return models


def deploy(
    client: ManagementClient,
    info: ArchiveInfo,
    settings: Mapping[str, Any],
    progress: Callable[[int, int], None] = lambda ready, requested: None,
    *,
    name: str | None = None,
    preloaded: bool = False,
) -> LiveModel:
    """Register an archive of the model store and wait until all its workers are READY. preloaded: it is registered already.

    name: to register it under; by default its own.

    Raises SlotwiseError, with the model unregistered again, where it does not become ready.
    """
    if not preloaded:
        client.register(info.path.name, name=name, **settings)
    called = name or info.name
    try:
        return client.wait_ready(called, settings["initial_workers"], version=info.version, progress=progress)
    except BaseException:
        with suppress(SlotwiseError):
            client.unregister(called, info.version)
        raise


def _copy(info: ArchiveInfo, model_store: Path) -> ArchiveInfo:
    """The same archive inside the model store: the server may load from nowhere else."""
    target = model_store / info.path.name
    if not target.exists():
        with written_whole(target) as partial:
            shutil.copyfile(info.path, partial)
    elif file_sha256(target) != info.sha256:
        hint = f"`cp {shlex.quote(str(info.path))} {shlex.quote(str(target))}` replaces it; or give yours another name"
        raise SlotwiseError(f"{target} is there already, with another content", hint)
    return inspect(target, need_digests=False)
