"""Where a running server and a profile differ, and what it takes to bring them together.

    workers                                        scaled through the management API, while it serves
    batch settings, engine, padding, server keys   fixed when a model is registered or the server starts: a restart

Compared are the profile that the server was started with (`profile.json` in its folder) and what its management API says,
with the profile as its file is now. A worker may have got less than it was told (a CPU where there is no GPU): that is no
difference, since nothing here could change it; `notes` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from slotwise.archive.build import ArchiveInfo, inspect
from slotwise.client.management import ManagementClient
from slotwise.deploy import deploy
from slotwise.errors import SlotwiseError
from slotwise.profiles.profile import Profile, load_profile

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel
    from slotwise.server.record import Kind, ServerRecord

Needs = Literal["scale", "restart"]


@dataclass(frozen=True)
class DesiredState:
    """What shall be. overrides: what `--set` and the environment said (they are in `profile`)."""

    profile: Profile
    overrides: Mapping[str, str]
    kind: Kind

    @classmethod
    def load(cls, name: str, overrides: Mapping[str, str], kind: Kind) -> DesiredState:
        """The profile as its file is now."""
        return cls(load_profile(name, overrides, {}), dict(overrides), kind)

    def of_model(self, info: ArchiveInfo) -> Profile:
        """The profile as the model in this archive wants it."""
        return _of_model(info, self.profile, self.overrides)

    def registration(self, info: ArchiveInfo) -> dict[str, Any]:
        """What this model is registered with."""
        return deploy.registration(info, self.profile, self.overrides)


@dataclass(frozen=True)
class DeployedModel:
    """One version of a model on the server, and its archive in the model store."""

    live: LiveModel
    info: ArchiveInfo

    def settings(self, told: Profile) -> dict[str, Any]:
        """What would register it again as it is."""
        return {
            "batch_size": self.live.batch_size,
            "max_batch_delay": self.live.max_batch_delay,
            "initial_workers": len(self.live.workers),
            "response_timeout": told.response_timeout_s,
        }


@dataclass(frozen=True)
class ObservedState:
    """What is. told: the profile that the server was started with."""

    record: ServerRecord
    told: Profile
    models: tuple[DeployedModel, ...]

    def told_of_model(self, info: ArchiveInfo) -> Profile:
        """The profile that this model's workers were started with."""
        return _of_model(info, self.told, self.record.overrides)


@dataclass(frozen=True)
class Difference:
    """One key. model: None where it is the whole server's. needs: how it is changed."""

    model: str | None
    version: str | None
    key: str
    live: Any
    declared: Any
    needs: Needs

    def __str__(self) -> str:
        return f"{f'{self.model} {self.version}' if self.model else 'server'}: {self.key} {self.live} -> {self.declared}"


def read(record: ServerRecord) -> ObservedState:
    """The state of a running server. Raises SlotwiseError where it does not answer or an archive is gone or another one."""
    models: list[DeployedModel] = []
    with ManagementClient(record) as client:
        for listed in client.list():
            first = client.describe(listed.name)  # the default version: registered first, it becomes the default again
            others = [live for live in client.describe_all(listed.name) if live.version != first.version]
            for live in (first, *others):
                info = inspect(record.model_store / live.archive.rpartition("/")[2], need_digests=False)
                if live.version not in ("", info.version):  # MMS may not know it
                    raise SlotwiseError(
                        f"{live.name} {live.version} is registered, but {info.path.name} now holds {info.version}",
                        f"put its archive back, or unregister all versions of {live.name} and register it again",
                    )
                models.append(DeployedModel(live, info))
    return ObservedState(record, record.effective_profile(), tuple(models))


def differences(state: ObservedState, declared: DesiredState) -> list[Difference]:
    """Every key that is not as declared; none where there is nothing to do."""
    found = [_server("server", state.record.kind, declared.kind), _server("profile", state.told.name, declared.profile.name)]
    found += [_server(key, getattr(state.told, key), getattr(declared.profile, key)) for key in Profile.section("server")]
    for model in state.models:
        found += _model(model, state.told_of_model(model.info), declared.of_model(model.info))
    return [difference for difference in found if difference.live != difference.declared]


def notes(state: ObservedState, cores: int) -> list[str]:
    """What a person should know of the live state although it is no difference to any profile."""
    said = []
    for model in state.models:
        live, told = model.live, state.told_of_model(model.info)
        if live.device and live.device != told.device:
            said.append(f"{live.name}: its workers run on {live.device}, {told.device} is not to be had here")
        workers, threads = len(live.workers), live.threads or 1
        if threads > 1 and workers * threads > cores:
            said.append(
                f"{live.name}: {workers} workers x {threads} threads share {cores} cores; a restart deals them out again"
            )
    return said


def _of_model(info: ArchiveInfo, profile: Profile, overrides: Mapping[str, str]) -> Profile:
    wishes = info.model.get("profiles", {}).get(profile.name, {})
    return profile.for_model({key: value for key, value in wishes.items() if key not in overrides}, info.path.name)


def _server(key: str, live: Any, declared: Any) -> Difference:
    return Difference(None, None, key, live, declared, "restart")


def _model(model: DeployedModel, told: Profile, wanted: Profile) -> list[Difference]:
    live = model.live
    rows: list[tuple[str, Any, Any, Needs]] = [
        ("batch_size", live.batch_size, wanted.batch_size, "restart"),
        ("max_batch_delay_ms", live.max_batch_delay, wanted.max_batch_delay_ms, "restart"),
        ("response_timeout_s", told.response_timeout_s, wanted.response_timeout_s, "restart"),
        ("workers", len(live.workers), wanted.initial_workers, "scale"),
    ]
    rows += [(key, getattr(told, key), getattr(wanted, key), "restart") for key in Profile.section("worker")]
    return [Difference(live.name, live.version, key, is_, shall, needs) for key, is_, shall, needs in rows]
