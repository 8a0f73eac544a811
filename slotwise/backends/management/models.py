"""The models of a server whose management API is ours (Ray, Triton): names, versions, defaults; a host makes them serve.

HostedModel     one version of a model, as it was registered
ModelHost       what Ray and Triton do each in its own way
ModelTable      which versions there are, and which of them is the default; it refuses as TorchServe does
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.guarding.foreign import check_handler
from slotwise.archive.inspection import inspect
from slotwise.backends.exchange import Refused
from slotwise.errors import SlotwiseError
from slotwise.model_spec import NAME
from slotwise.profiles.profile_keys import DAY_S, MOST_DELAY_MS
from slotwise.worker.hosts.child import START_TIMEOUT_S

if TYPE_CHECKING:
    from slotwise.profiles.profile import Profile

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """A refusal in TorchServe's words. status: of HTTP; type_: the name of the server's exception."""

    def __init__(self, status: int, type_: str, message: str) -> None:
        super().__init__(message)
        self.status, self.type_, self.message = status, type_, message


@dataclass(frozen=True, kw_only=True)
class HostedModel:
    """One registered version of a model. info: its archive, verified. archive: what it is called in the model store.

    profile: the server's, as this model wants it. at_start: whether the server was started with it.
    """

    name: str
    version: str
    info: ArchiveInfo
    archive: str
    profile: Profile
    batch_size: int
    max_batch_delay_ms: float
    min_workers: int
    max_workers: int
    response_timeout_s: int
    startup_timeout_s: int = int(START_TIMEOUT_S)
    at_start: bool = False

    @property
    def id(self) -> str:
        """A name that no other version of any model has: neither a name nor a version holds an @."""
        return f"{self.name}@{self.version}"

    @property
    def as_registered(self) -> Profile:
        """The profile with what the registration says; of times that nobody waits for, the longest that a profile has."""
        changes = {
            "batch_size": self.batch_size,
            "max_batch_delay_ms": min(self.max_batch_delay_ms, MOST_DELAY_MS),
            "initial_workers": max(1, self.min_workers),
            "response_timeout_s": min(self.response_timeout_s, DAY_S),
        }
        return self.profile.but(changes, f"the registration of {self.name}")


@dataclass(frozen=True, kw_only=True)
class HostedWorker:
    """One worker process of a model. status: STARTING, READY, UNLOADING or ASLEEP. pid: 0 where there is none.

    got: what the archive's worker reported when it started (slotwise.client.live_model.LiveWorker). node: where it runs, where
    that may be another machine than the server's. started_at: Unix time; 0 where nobody knows.
    """

    id: str
    pid: int
    status: str
    got: Mapping[str, Any]
    memory_bytes: int = 0
    gpu: bool = False
    node: str = ""
    started_at: float = 0.0


@dataclass(frozen=True)
class Observation:
    """The workers of a model now. failure: why it cannot become ready, "" where nothing is known against it.

    waiting: requests that no worker has yet. batch_cost: what its batches cost, where the host learns that: in ms a batch, each
    request in it, and how far off that is; and of how many batches. settings: those of its model-config.yaml that hold here, by
    TorchServe's names.
    """

    workers: tuple[HostedWorker, ...] = ()
    failure: str = ""
    waiting: int = 0
    batch_cost: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CustomizedMetadata:
    """What a handler says of itself, and with which status of HTTP."""

    status: int
    content: Mapping[str, Any]


class ModelHost(Protocol):
    """What makes models serve. Each call may block, and raises SlotwiseError, or ApiError, where it cannot be done.

    Changes come one at a time; `describe` may be called meanwhile, from other threads.
    """

    def register(self, model: HostedModel, *, default: bool) -> None:
        """Start to serve a model at POST /predictions/NAME/VERSION. Returns while its workers still start.

        default: requests without a version go to it, too.
        """

    def unregister(self, model: HostedModel) -> None:
        """Stop to serve it, once what its workers have in hand is answered."""

    def scale(self, model: HostedModel) -> None:
        """Give it its min_workers, up to max_workers. Returns while they still start or stop."""

    def set_default(self, model: HostedModel, before: HostedModel) -> None:
        """Send requests without a version to `model`, and no longer to `before`; none is lost."""

    def describe(self, model: HostedModel) -> Observation:
        """Its workers now."""

    def close(self) -> None:
        """End everything that was started."""


class ModelTable:
    """Every registered model by name and version; the first of a name's versions is the default one."""

    def __init__(
        self, host: ModelHost, model_store: Path, profile: Profile, overrides: Mapping[str, str], kind: str = "triton"
    ) -> None:
        """overrides: the keys that `--set` and the environment set. kind: of the host; on Ray replicas are the workers."""
        self.host, self.model_store, self.profile, self.overrides, self.kind = host, model_store, profile, overrides, kind
        self._models: dict[str, dict[str, HostedModel]] = {}
        self._change = threading.Lock()
        self.note: Callable[[list[HostedModel]], None] = lambda models: None  # gets all of them at each change

    def found(self, archive: str) -> ArchiveInfo:
        """An archive as it is to be served. Raises ApiError or SlotwiseError."""
        return inspect(self.path(archive), need_digests=False)

    def stored_name(self, info: ArchiveInfo) -> str:
        """What an archive that was found is called in the model store."""
        return info.path.name

    async def customized(self, model: HostedModel) -> CustomizedMetadata | None:
        """What a handler says of itself. Raises ApiError. None: handlers are not asked what they are."""
        return None

    def usual(self, info: ArchiveInfo, name: str) -> tuple[Profile, dict[str, Any]]:
        """The profile as this model wants it, and the settings that hold where its registration says nothing."""
        wishes = info.wishes(self.profile.name)
        profile = self.profile.for_model({key: value for key, value in wishes.items() if key not in self.overrides})
        return profile, dict(profile.on(self.kind).registration())

    def register(self, archive: str, name: str | None = None, *, at_start: bool = False, **settings: Any) -> HostedModel:
        """Register an archive of the model store. settings: batch_size and others; None leaves one to the profile."""
        info = self.found(archive)
        check_handler(info, settings.get("handler") or "")
        profile, usual = self.usual(info, name or info.name)
        chosen = usual | {key: value for key, value in settings.items() if value is not None}
        workers = int(chosen["initial_workers"])
        if workers < 0:
            raise ApiError(400, "BadRequestException", f"initial_workers is below 0: {workers}")
        model = HostedModel(
            name=name or info.name,
            version=info.version or "1.0",
            info=info,
            archive=self.stored_name(info),
            profile=profile,
            batch_size=int(chosen["batch_size"]),
            max_batch_delay_ms=chosen["max_batch_delay"],
            min_workers=workers,
            max_workers=max(workers, int(chosen.get("max_workers", workers))),
            response_timeout_s=int(chosen["response_timeout"]),
            startup_timeout_s=int(chosen.get("startup_timeout", START_TIMEOUT_S)),
            at_start=at_start,
        )
        for called in (model.name, model.version):  # hosts name files and folders by them
            if not NAME.fullmatch(called):
                raise ApiError(400, "BadRequestException", f"{called!r:.100} cannot be the name or version of a model")
        with self._change:
            versions = self._models.get(model.name, {})
            if model.version in versions:
                raise ApiError(
                    409,
                    "ConflictStatusException",
                    f"Model version {model.version} is already registered for model {model.name}",
                )
            self.host.register(model, default=not versions)
            self._now({**self._models, model.name: {**versions, model.version: model}})
        return model

    def unregister(self, name: str, version: str | None) -> None:
        """Remove a model with all its versions, or one version; the default one only where it is the last."""
        with self._change:
            versions = self.versions(name)
            going = self.get(name, version)
            if going is versions[0] and len(versions) > 1:
                raise ApiError(403, "InvalidModelVersionException", f"Cannot remove default version for model {name}")
            left = {**self._models, name: {one.version: one for one in versions if one is not going}}
            self._now({name: versions for name, versions in left.items() if versions})
            self.host.unregister(going)

    def scale(self, name: str, version: str | None, min_workers: int, max_workers: int) -> HostedModel:
        """Change a version's number of workers."""
        if not 0 <= min_workers <= max_workers:
            raise ApiError(400, "BadRequestException", "max_worker cannot be less than min_worker.")
        with self._change:
            old = self.get(name, version)
            new = replace(old, min_workers=min_workers, max_workers=max_workers)
            _ = new.as_registered  # raises where a profile may not have so many
            self.host.scale(new)
            versions = {one.version: new if one is old else one for one in self.versions(name)}
            self._now({**self._models, name: versions})
        return new

    def set_default(self, name: str, version: str) -> None:
        """Let requests without a version go to this one."""
        with self._change:
            versions = self.versions(name)
            chosen = next((one for one in versions if one.version == version), None)
            if chosen is None:  # other words than `get` has: TorchServe's
                message = f"Model version {version} does not exist for model {name}"
                raise ApiError(404, "ModelVersionNotFoundException", message)
            if chosen is not versions[0]:
                self.host.set_default(chosen, versions[0])
            others = {one.version: one for one in versions if one is not chosen}
            self._now({**self._models, name: {chosen.version: chosen, **others}})

    def _now(self, models: dict[str, dict[str, HostedModel]]) -> None:
        """From now on these are registered, so. Of each model the default version is noted first."""
        self._models = models
        self.note([one for versions in models.values() for one in versions.values()])

    def all(self) -> list[HostedModel]:
        """The default version of every model, sorted by name."""
        return [next(iter(versions.values())) for _, versions in sorted(self._models.items())]

    def versions(self, name: str) -> list[HostedModel]:
        """Every version of a model, the default one first."""
        if name not in self._models:
            raise ApiError(404, "ModelNotFoundException", f"Model not found: {name}")
        return list(self._models[name].values())

    def get(self, name: str, version: str | None = None) -> HostedModel:
        """One version of a model; without a version, the default one."""
        versions = self.versions(name)
        chosen = versions[0] if version is None else next((one for one in versions if one.version == version), None)
        if chosen is None:
            message = f"Model version: {version} does not exist for model: {name}"
            raise ApiError(404, "ModelVersionNotFoundException", message)
        return chosen

    def path(self, archive: str) -> Path:
        """An archive's file, which is in the model store and nowhere else."""
        if not archive:
            raise ApiError(404, "ModelNotFoundException", "empty url")
        if Path(archive).name != archive:
            message = f"Relative path is not allowed in url: {archive}"
            raise ApiError(404, "ModelNotFoundException", message)
        path = self.model_store / archive
        if not path.is_file():
            raise ApiError(404, "ModelNotFoundException", f"Model not found at: {archive}")
        return path


def refusal(error: Exception) -> ApiError:
    """Any failure of a call as what its client is answered."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SlotwiseError):
        return ApiError(400, "InvalidModelException", error.message)
    if isinstance(error, Refused):  # the model has been unregistered meanwhile
        return ApiError(error.status, "ModelNotFoundException", error.message)
    logger.error("a call of the management API failed", exc_info=error)
    return ApiError(500, "InternalServerException", f"{type(error).__name__}: {error}"[:500])
