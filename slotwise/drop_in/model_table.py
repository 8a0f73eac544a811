"""The models of a deployment: which settings hold, and what is there after a start."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.backends.exchange import BackendRequest, Refused
from slotwise.backends.management.models import ApiError, CustomizedMetadata, HostedModel, ModelTable, refusal
from slotwise.drop_in.archive_source import DeployedArchives, shown
from slotwise.drop_in.configuration import Configuration
from slotwise.drop_in.own_host import DropInHost
from slotwise.drop_in.snapshots import Occasion, SnapshotModel, Snapshots, models_of
from slotwise.errors import SlotwiseError
from slotwise.frontend import replies
from slotwise.profiles.profile import Profile

log = logging.getLogger("slotwise.drop_in")

KEYS = {  # of a model-config.yaml, of `models` and of a snapshot: as a registration names them
    "batchSize": "batch_size",
    "maxBatchDelay": "max_batch_delay",
    "responseTimeout": "response_timeout",
    "startupTimeout": "startup_timeout",
    "minWorkers": "initial_workers",
    "maxWorkers": "max_workers",
}
MAY_BE_0 = ("max_batch_delay", "initial_workers", "max_workers")
NO_WORKER = 'Model "{}" has no worker to serve describe request. Please use scale workers API to add workers.'
REFUSED = {  # keys of a model-config.yaml that would change what is answered
    "parallelType": "several processes for one model are not there",
}


class DropInModels(ModelTable):
    """The models, with TorchServe's settings: a registration's, then the archive's, then the configuration's, then its own.

    Every change is written to a snapshot.
    """

    def __init__(
        self,
        host: DropInHost,
        configuration: Configuration,
        profile: Profile,
        source: DeployedArchives,
        snapshots: Snapshots | None,
    ) -> None:
        super().__init__(host, configuration.model_store, profile, {}, "slotwise")
        self.configuration, self.source, self.snapshots = configuration, source, snapshots
        self.loaded, self.host_gpus = host.loaded, host.gpus.names
        self._loader: int | None = None  # the thread that loads what the deployment starts with
        self._all_there, self._saving = threading.Event(), threading.Lock()
        if not self.loaded.loading:
            self._all_there.set()
        named = models_of(configuration.text("models"), "models") if configuration.text("models") else []
        self.configured = {(one.name, one.version): one for one in named}

    def found(self, archive: str) -> ArchiveInfo:
        """See ModelTable."""
        return self.source.served(archive)

    def stored_name(self, info: ArchiveInfo) -> str:
        """See ModelTable."""
        return self.source.stored_name(info)

    async def customized(self, model: HostedModel) -> CustomizedMetadata:
        """See ModelTable; the handler is asked as TorchServe asks it: without a body or mates, with the header describe."""
        served = self.loaded.find(model.name, model.version)
        if not served.wanted:
            raise ApiError(503, "ServiceUnavailableException", NO_WORKER.format(model.name))
        deadline = time.monotonic() + model.response_timeout_s
        request = BackendRequest(
            model.name,
            deadline,
            "describe",
            headers={"describe": "True"},
            version=model.version,
            alone=True,
            describes=True,
        )
        try:
            answer = await served.answer(request)
        except Refused as refused:
            raise ApiError(refused.status, "InternalServerException", refused.message) from refused
        if served.settings.foreign and answer.status >= 400 and answer.body.startswith(b'{"error":'):  # its guard's words
            raise ApiError(answer.status, "InternalServerException", replies.message_of(answer.status, answer.body))
        return CustomizedMetadata(answer.status, _object(answer.body))

    def usual(self, info: ArchiveInfo, name: str) -> tuple[Profile, dict[str, Any]]:
        """See ModelTable."""
        for key, why in REFUSED.items():
            if info.config.get(key) not in (None, False, "", [], {}):
                raise ApiError(
                    400, "BadRequestException", f"{info.path.name}: {key} in its model-config.yaml is refused: {why}"
                )
        _check_sequences(info)
        self._check_devices(info)
        workers = self.configuration.number("default_workers_per_model", 0)
        settings = {
            "batch_size": self.profile.batch_size,
            "max_batch_delay": self.profile.max_batch_delay_ms,
            "initial_workers": self.configuration.workers_at_start() if self._starting else workers,
            "response_timeout": self.profile.response_timeout_s,
            "startup_timeout": self.configuration.number("default_startup_timeout", 120),
        }
        configured = self.configured.get((name, info.version or "1.0"))
        for own in (configured.settings if configured else {}, info.config):
            settings |= {name: value for name, value in _numbers(own).items() if value > 0}
        changes: dict[str, Any] = {}
        if str(info.config.get("deviceType", "")).lower() == "cpu":
            changes["device"] = "cpu"
        if type(info.config.get("jobQueueSize")) is int and info.config["jobQueueSize"] > 0:
            changes["job_queue_size"] = info.config["jobQueueSize"]
        profile = self.profile.for_model(info.wishes(self.profile.name) if info.model else {})
        return (profile.but(changes, info.path.name) if changes else profile), settings

    def _check_devices(self, info: ArchiveInfo) -> None:
        """Raise ApiError where its deviceIds name GPUs that are not there; without any GPU nothing looks at them."""
        ids, count = info.config.get("deviceIds"), len(self.host_gpus)
        if not ids or not count:
            return
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < count for one in ids):
            message = f"{info.path.name}: deviceIds is refused: they are a list of numbers from 0 to {count - 1}"
            raise ApiError(400, "BadRequestException", message)

    def load(self) -> None:
        """Register what the deployment starts with: a snapshot's models, else those that it names. Raises SlotwiseError.

        One that cannot be loaded is logged, and the others are served; a snapshot is restored whole or not at all.
        """
        self._loader = threading.get_ident()
        try:
            if snapshot := self.configuration.text("model_snapshot"):
                for one in models_of(snapshot, "model_snapshot"):
                    self._restore(one)
            else:
                for name, archive in self._named():
                    self._load(archive, name)
        finally:
            self._loader, self.loaded.loading = None, False
            self._all_there.set()
        self.save("startup")

    @property
    def _starting(self) -> bool:
        """Whether this thread loads what the deployment starts with."""
        return threading.get_ident() == self._loader

    def _await_start(self) -> None:
        """Wait, in any other thread, until that is there: of two versions the first is the default."""
        if not self._starting:
            self._all_there.wait()

    def every(self) -> Iterator[tuple[HostedModel, bool]]:
        """Every version of every model, and whether it is the default one."""
        for _, versions in sorted(self._models.items()):
            default = next(iter(versions.values()))
            yield from ((version, version is default) for version in versions.values())

    def _archives(self) -> set[str]:
        return {one.archive for one, _ in self.every()}

    def save(self, occasion: Occasion) -> None:
        """Write a snapshot, where there are any."""
        if self.snapshots is not None and not self._starting:
            with self._saving:
                self.snapshots.save(occasion, self.every())

    # What changes them is saved.

    def register(self, archive: str, name: str | None = None, *, at_start: bool = False, **settings: Any) -> HostedModel:
        """See ModelTable."""
        self._await_start()
        try:
            model = super().register(archive, name, at_start=at_start or self._starting, **settings)
        except BaseException:
            self.source.not_registered(self._archives())
            raise
        log.info("Model %s loaded.", model.name)
        self.save("snapshot")
        return model

    def unregister(self, name: str, version: str | None) -> None:
        """See ModelTable; one whose end fails is gone from the snapshot, too."""
        self._await_start()
        before, going = self._models, self.get(name, version)
        try:
            super().unregister(name, version)
            log.info("Model %s unregistered.", name)
        finally:
            if self._models is not before:
                if going.archive not in self._archives():
                    self.source.unused(going.archive)
                self.save("snapshot")

    def scale(self, name: str, version: str | None, min_workers: int, max_workers: int) -> HostedModel:
        """See ModelTable."""
        self._await_start()
        model = super().scale(name, version, min_workers, max_workers)
        self.save("snapshot")
        return model

    def set_default(self, name: str, version: str) -> None:
        """See ModelTable."""
        self._await_start()
        super().set_default(name, version)
        self.save("snapshot")

    def _named(self) -> list[tuple[str | None, str]]:
        """The models of --models and load_models: a name, where one is given, and an archive."""
        words = [word.strip() for word in self.configuration.text("load_models").split(",")]
        words = [word for word in words if word and word.lower() != "none"]
        if [word.lower() for word in words] == ["all"]:
            return [(None, archive) for archive in self.source.all()]
        return [_split(word) for word in words]

    def _load(self, archive: str, name: str | None) -> None:
        try:
            self.register(archive, name)
        except Exception as error:
            log.error("Failed to load model: %s: %s", shown(archive), refusal(error).message)

    def _restore(self, one: SnapshotModel) -> None:
        try:
            model = self.register(one.archive, one.name, **_numbers(one.settings))
        except (ApiError, SlotwiseError) as error:
            why = refusal(error).message
            raise SlotwiseError(f"Failed to start from snapshot: {one.archive}: {why}", "--ncs starts without one") from error
        if model.version != one.version:
            raise SlotwiseError(
                f"{one.archive} is version {model.version}, not {one.version}", "--ncs starts without a snapshot"
            )


def _check_sequences(info: ArchiveInfo) -> None:
    """Raise ApiError where its sequenceBatching cannot be as it says."""
    if not info.config.get("sequenceBatching"):
        return
    idle_ms = info.config.get("sequenceMaxIdleMSec")
    why = "its handler keeps nothing between two requests" if info.model else ""
    if not why and not (type(idle_ms) is int and idle_ms > 0):
        why = "sequenceMaxIdleMSec has to be above 0, else a sequence that nobody ends keeps its place for ever"
    if why:
        raise ApiError(400, "BadRequestException", f"{info.path.name}: sequenceBatching is refused: {why}")


def _numbers(own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings among these keys, those that are numbers; 0 only where it means something."""
    found = {name: own[key] for key, name in KEYS.items() if isinstance(own.get(key), int | float)}
    return {
        name: value for name, value in found.items() if not isinstance(value, bool) and value >= (0 if name in MAY_BE_0 else 1)
    }


def _object(body: bytes) -> dict[str, Any]:
    """A JSON object without what is null in it, as TorchServe writes it; an empty one where it is none."""

    def without_null(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in pairs if value is not None}

    try:
        content = json.loads(body, object_pairs_hook=without_null, parse_constant=str)  # NaN is no JSON; as there it is a text
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def shown_word(word: str) -> str:
    """A word of --models or load_models, without what may be secret in an address."""
    name, archive = _split(word.strip())
    return f"{name}={shown(archive)}" if name else shown(archive)


def _split(word: str) -> tuple[str | None, str]:
    """`name=archive` or `archive`; a URL may hold a = itself."""
    name, equals, archive = word.partition("=")
    return (name, archive) if equals and "/" not in name else (None, word)
