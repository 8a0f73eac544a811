"""Compare a running server with a profile: what differs, and whether scaling is enough to mend it or a restart is needed.

    workers                                        scaled through the management API, while it serves
    batch settings, engine, padding, server keys   fixed when a model is registered or the server starts: a restart

The observed state is the profile that the server was started with (`profile.json` in its folder) and what its management
API says. The desired state is the profile as its file is now. A worker may have got less than its profile wants (a CPU where
there is no GPU). That is no difference, because no restart would change it; `notes` mentions it.

An archive in the model store may be another one by now than the one that workers were started from: they report the digest of
its content, which is compared, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.inspection import inspect
from slotwise.archive.renewal import outdated
from slotwise.client.management import ManagementClient
from slotwise.deploy import deploy
from slotwise.errors import SlotwiseError
from slotwise.profiles.profile import Profile, load_profile
from slotwise.server.capacity import WORKERS_PER_CORE
from slotwise.worker.environment.cores import available_cores

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel
    from slotwise.server.record import Kind, ServerRecord

Needs = Literal["scale", "restart"]
WORKERS = ("initial_workers", "min_workers", "max_workers")
ROWS_OF_THEIR_OWN = ("batch_size", "max_batch_delay_ms", "response_timeout_s", *WORKERS)  # of [registration]


@dataclass(frozen=True)
class DesiredState:
    """Desired state. overrides: the keys that `--set` and the environment set (`profile` has them, too)."""

    profile: Profile
    overrides: Mapping[str, str]
    kind: Kind

    @classmethod
    def load(cls, name: str, overrides: Mapping[str, str], kind: Kind) -> DesiredState:
        """The desired state by the profile's file as it is now."""
        return cls(load_profile(name, overrides, {}), dict(overrides), kind)

    def of_model(self, info: ArchiveInfo) -> Profile:
        """The profile as the model in this archive wants it."""
        return deploy.of_model(info, self.profile, self.overrides, self.kind)

    def registration(self, info: ArchiveInfo) -> dict[str, Any]:
        """The settings to register this model with."""
        return deploy.registration(info, self.profile, self.overrides, self.kind)


@dataclass(frozen=True)
class DeployedModel:
    """One version of a model on the server, and its archive in the model store."""

    live: LiveModel
    info: ArchiveInfo

    @property
    def ran_another(self) -> str:
        """The content that workers run where the archive holds another one by now; "" where it does not, or nobody tells."""
        return min(self.live.contents - {self.info.content}, default="") if self.info.content else ""

    def settings(self, started_with: Profile) -> dict[str, Any]:
        """The settings that would register it again as it is. started_with: the profile as it was for this model."""
        return {
            "batch_size": self.live.batch_size,
            "max_batch_delay": self.live.max_batch_delay,
            "initial_workers": len(self.live.workers),
            "response_timeout": self.live.response_timeout or started_with.response_timeout_s,
        }


@dataclass(frozen=True)
class ObservedState:
    """Observed state. started_with: the profile that the server was started with."""

    record: ServerRecord
    started_with: Profile
    models: tuple[DeployedModel, ...]

    def started_with_of_model(self, info: ArchiveInfo) -> Profile:
        """The profile that this model's workers were started with."""
        return deploy.of_model(info, self.started_with, self.record.overrides, self.record.kind)


@dataclass(frozen=True)
class Difference:
    """One key that differs. model, version: None for a key of the whole server. needs: how it can be changed."""

    model: str | None
    version: str | None
    key: str
    live: Any
    declared: Any
    needs: Needs

    def __str__(self) -> str:
        return f"{f'{self.model} {self.version}' if self.model else 'server'}: {self.key} {self.live} -> {self.declared}"


def read(record: ServerRecord) -> ObservedState:
    """Read the state of a running server.

    Raises SlotwiseError where the server does not answer, or where an archive is gone or another one by now.
    """
    with ManagementClient(record) as client:
        models = tuple(deployed(record, live) for live in live_models(client))
    return ObservedState(record, record.effective_profile(), models)


def live_models(client: ManagementClient) -> Iterator[LiveModel]:
    """Every version of every model; the default version before the others: registered first, it becomes the default again."""
    for listed in client.list():
        first = client.describe(listed.name)
        yield first
        yield from (live for live in client.describe_all(listed.name) if live.version != first.version)


def deployed(record: ServerRecord, live: LiveModel) -> DeployedModel:
    """The model with its archive. Raises SlotwiseError where that is gone or another one by now."""
    info = inspect(record.model_store / live.archive.rpartition("/")[2], need_digests=False)
    if live.version not in ("", info.version):  # MMS may not know it
        raise SlotwiseError(
            f"{live.name} {live.version} is registered, but {info.path.name} now holds {info.version}",
            f"put its archive back, or unregister all versions of {live.name} and register it again",
        )
    return DeployedModel(live, info)


def differences(state: ObservedState, desired: DesiredState) -> list[Difference]:
    """Every key that differs; none where there is nothing to do."""
    old, new = state.started_with, desired.profile
    compared = [_server("server", state.record.kind, desired.kind), _server("profile", old.name, new.name)]
    compared += [_server(key, getattr(old, key), getattr(new, key)) for key in Profile.section("server")]
    for model in state.models:
        compared += _model(model, state.started_with_of_model(model.info), desired.of_model(model.info), desired.kind)
    return [difference for difference in compared if difference.live != difference.declared]


def notes(state: ObservedState, cores: int) -> list[str]:
    """What a person should know of the observed state although no change of the profile would mend it."""
    notes = [note for model in state.models if (note := outdated(model.info))]
    for model in state.models:
        live = model.live
        device = state.started_with_of_model(model.info).device
        if live.device and live.device != device:
            notes.append(f"{live.name}: its workers run on {live.device}, because there is no {device} here")
        workers, threads = len(live.workers), live.threads or 1
        if workers > WORKERS_PER_CORE * cores:
            notes.append(
                f"{live.name}: {workers} workers are more than {cores} cores can keep busy; `slotwise scale` takes some away"
            )
        elif threads > 1 and workers * threads > cores:
            notes.append(
                f"{live.name}: {workers} workers x {threads} threads share {cores} cores; a restart deals them out again"
            )
    threads_in_all = sum(len(model.live.workers) * (model.live.threads or 1) for model in state.models)
    if len(state.models) > 1 and threads_in_all > cores and any((model.live.threads or 1) > 1 for model in state.models):
        notes.append(
            f"{len(state.models)} models have {threads_in_all} threads for {cores} cores; a restart deals them out again"
        )
    return notes


def _server(key: str, live: Any, desired: Any) -> Difference:
    return Difference(None, None, key, live, desired, "restart")


def _model(model: DeployedModel, old: Profile, new: Profile, kind: Kind) -> list[Difference]:
    live = model.live
    rows: list[tuple[str, Any, Any, Needs]] = [
        ("batch_size", live.batch_size, new.batch_size, "restart"),
        ("max_batch_delay_ms", live.max_batch_delay, new.max_batch_delay_ms, "restart"),
        ("response_timeout_s", old.response_timeout_s, new.response_timeout_s, "restart"),
    ]
    if kind == "slotwise":
        rows += _of_own_host(live, old, new)
    if not _scales_by_itself(new, kind, len(live.workers)):
        rows.append(("workers", len(live.workers), new.initial_workers, "scale"))
    if model.ran_another:
        rows.append(("archive", model.ran_another[:12], model.info.content[:12], "restart"))
    rows += [(key, getattr(old, key), getattr(new, key), "restart") for key in Profile.section("worker")]
    rows += [(key, getattr(old, key), getattr(new, key), "restart") for key in Profile.section("ray") if kind == "ray"]
    return [Difference(live.name, live.version, key, observed, desired, needs) for key, observed, desired, needs in rows]


def _of_own_host(live: LiveModel, old: Profile, new: Profile) -> list[tuple[str, Any, Any, Needs]]:
    """What only our own host reads, and between which limits it chooses workers by the load: set by hand, they differ, too."""
    by_host = [key for key in Profile.section("registration") if key not in ROWS_OF_THEIR_OWN]
    rows: list[tuple[str, Any, Any, Needs]] = [(key, getattr(old, key), getattr(new, key), "restart") for key in by_host]
    limits = (live.batch_cost or {}).get("workers")
    if limits and new.workers_by_load != "off":
        rows.append(("min_workers", limits["least"], new.min_workers, "restart"))
        rows.append(("max_workers", limits["most"], max(new.min_workers, new.most_workers(available_cores())), "restart"))
    return rows


def _scales_by_itself(profile: Profile, kind: Kind, workers: int) -> bool:
    """Whether the load chooses the number of workers, by the profile, and may have chosen this one."""
    if kind == "ray":
        return profile.min_replicas <= workers <= profile.max_replicas
    return kind == "slotwise" and profile.workers_by_load == "auto"
