"""What differs between a server and a profile, and in which order things are done about it; no server is started."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.client.live_model import LiveModel, LiveWorker
from slotwise.client.management import RegisteredModel
from slotwise.commands import apply as command
from slotwise.deploy import apply, drift
from slotwise.deploy.drift import DeployedModel, DesiredState, Difference, ObservedState
from slotwise.errors import SlotwiseError
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import Profile, load_profile
from slotwise.server.record import ServerRecord
from tests.support.records import server_record

PROFILE = load_profile("cpu", environ={}, cores=0)
WISHES = {"cpu": {"batch_size": 32}, "ei": {"engine": "auto"}}
LIVE = LiveModel(
    name="digits",
    version="1.0",
    archive="digits.mar",
    batch_size=32,
    max_batch_delay=PROFILE.max_batch_delay_ms,
    min_workers=1,
    max_workers=1,
    workers=(LiveWorker("9000", 7, "READY", 0, False, {}),),
    profile="cpu",
    engine="openvino",
    precision="bf16",
    device="cpu",
    threads=2,
    padding="none",
)


def record(**overrides: str) -> ServerRecord:
    return server_record(Path("/nowhere"), overrides=dict(overrides))


def state(live: LiveModel = LIVE, **overrides: str) -> ObservedState:
    """A server that was started with the cpu profile and these overrides."""
    manifest = {"model": {"modelName": live.name, "modelVersion": live.version}}
    info = ArchiveInfo(Path(live.archive), 1, "", manifest, {"profiles": WISHES})
    told = load_profile("cpu", overrides, {}, cores=0)
    return ObservedState(record(**overrides), told, (DeployedModel(live, info),))


def as_blue() -> ObservedState:
    """digits.mar, registered as blue."""
    (model,) = state().models
    return replace(state(), models=(replace(model, live=replace(LIVE, name="blue")),))


def declared(name: str = "cpu", **overrides: str) -> DesiredState:
    return DesiredState(load_profile(name, overrides, {}, cores=0), overrides, "torchserve")


def shown(state: ObservedState, declared: DesiredState) -> list[str]:
    return [f"{one} ({one.needs})" for one in drift.differences(state, declared)]


def test_nothing_differs() -> None:
    assert shown(state(), declared()) == []


def test_workers_can_be_scaled_and_batch_settings_cannot() -> None:
    live = replace(LIVE, batch_size=8, workers=LIVE.workers * 3)
    assert shown(state(live), declared()) == [
        "digits 1.0: batch_size 8 -> 32 (restart)",
        "digits 1.0: workers 3 -> 1 (scale)",
    ]


def test_a_number_that_the_load_has_chosen_is_no_difference_and_limits_set_by_hand_are() -> None:
    auto = {"workers_by_load": "auto", "max_workers": "3", "linger": "auto", "latency_p99_ms": "50"}
    wanted = replace(declared(**auto), kind="slotwise")
    live = replace(LIVE, workers=LIVE.workers * 3, batch_cost={"workers": {"least": 1, "most": 3}})
    ours = replace(state(live, **auto), record=replace(record(**auto), kind="slotwise"))
    assert shown(ours, wanted) == []
    by_hand = replace(live, batch_cost={"workers": {"least": 2, "most": 2}})
    held = replace(ours, models=(DeployedModel(by_hand, ours.models[0].info),))
    assert shown(held, wanted) == ["digits 1.0: min_workers 2 -> 1 (restart)", "digits 1.0: max_workers 2 -> 3 (restart)"]
    assert shown(ours, replace(declared(), kind="slotwise")) == [
        "digits 1.0: linger auto -> free (restart)",
        "digits 1.0: workers_by_load auto -> off (restart)",
        "digits 1.0: latency_p99_ms 50.0 -> 0.0 (restart)",
        "digits 1.0: workers 3 -> 1 (scale)",
    ]


OTHERS = {"linger": "exact", "workers_by_load": "advise", "min_workers": "2", "when_asleep": "refuse"}  # each other key: 5


@pytest.mark.parametrize("key", Profile.section("registration"))
def test_each_key_that_our_own_host_reads_differs_where_it_was_changed(key: str) -> None:
    """The limits of the workers are read where these follow the load. Else what is there would pass for what is declared."""
    before = {"workers_by_load": "auto", "max_workers": "3"} if key in ("min_workers", "max_workers") else {}
    live = replace(LIVE, batch_cost={"workers": {"least": 1, "most": 3}} if before else None)
    ours = replace(state(live, **before), record=replace(record(**before), kind="slotwise"))
    wanted = replace(declared(**{**before, key: OTHERS.get(key, "5")}), kind="slotwise")
    expected = ("workers", "scale") if key == "initial_workers" else (key, "restart")
    assert [(one.key, one.needs) for one in drift.differences(ours, wanted)] == [expected]


def test_what_was_set_for_a_run_differs_from_the_file() -> None:
    live = replace(LIVE, batch_size=4)
    assert shown(state(live, batch_size="4"), declared()) == ["digits 1.0: batch_size 4 -> 32 (restart)"]
    assert shown(state(live, batch_size="4"), declared(batch_size="4")) == []
    assert shown(state(log_level="DEBUG"), declared()) == ["server: log_level DEBUG -> WARN (restart)"]


def test_another_profile_with_the_models_own_wishes() -> None:
    assert shown(state(), declared("ei")) == [
        "server: profile cpu -> ei (restart)",
        "digits 1.0: max_batch_delay_ms 2 -> 10 (restart)",
        "digits 1.0: workers 1 -> 2 (scale)",
        "digits 1.0: device cpu -> cuda (restart)",
        "digits 1.0: precision auto -> fp32 (restart)",
        "digits 1.0: padding none -> static (restart)",
        "digits 1.0: memory_fraction 1.0 -> 0.4 (restart)",
    ]


def test_a_cpu_where_cuda_was_wanted_is_a_note_and_no_difference() -> None:
    told = replace(state(), started_with=load_profile("ei", environ={}, cores=0))
    live = replace(LIVE, max_batch_delay=10, workers=LIVE.workers * 2)
    told = replace(told, models=(DeployedModel(live, told.models[0].info),))
    assert shown(told, declared("ei")) == []
    assert drift.notes(told, 4) == ["digits: its workers run on cpu, because there is no cuda here"]


def test_a_worker_of_an_earlier_release_is_a_note() -> None:
    old = state()
    info = replace(old.models[0].info, release="0.2.0")
    (note,) = drift.notes(replace(old, models=(replace(old.models[0], info=info),)), 6)
    assert "carries the worker of slotwise 0.2.0: `slotwise renew " in note


def test_workers_that_were_scaled_up_share_the_cores() -> None:
    scaled = state(replace(LIVE, workers=LIVE.workers * 3))
    assert drift.notes(scaled, 6) == []
    assert drift.notes(scaled, 4) == ["digits: 3 workers x 2 threads share 4 cores; a restart deals them out again"]


def test_plans() -> None:
    live = replace(LIVE, batch_size=4, workers=LIVE.workers * 3)
    (_, before), *_ = apply.old_registrations(state(live))
    (_, after), *_ = apply.new_registrations(state(live), declared())
    assert (before["batch_size"], before["initial_workers"], before["max_batch_delay"]) == (4, 3, 2)
    assert (after["batch_size"], after["initial_workers"]) == (32, 1)


@pytest.mark.parametrize("versions", [["1.0", "2.0"], ["1.0"], ["2.0"], [""]])
def test_an_archive_of_another_version_than_the_live_one_is_refused(
    versions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    live = tuple(replace(LIVE, version=version) for version in versions)
    client = SimpleNamespace(
        list=lambda: [RegisteredModel("digits", "digits.mar")], describe=lambda name: live[0], describe_all=lambda name: live
    )
    built = replace(state().models[0].info, manifest={"model": {"modelName": "digits", "modelVersion": "2.0"}})
    monkeypatch.setattr(drift, "ManagementClient", lambda record: nullcontext(client))
    monkeypatch.setattr("slotwise.deploy.drift.inspect", lambda path, need_digests: built)
    monkeypatch.setattr(ServerRecord, "effective_profile", lambda self: PROFILE)
    if "1.0" in versions:
        with pytest.raises(SlotwiseError, match=r"digits 1\.0 is registered, but digits\.mar now holds 2\.0"):
            drift.read(record())
    else:
        assert [model.live.version for model in drift.read(record()).models] == versions


class Servers:
    """Stands for slotwise.server.lifecycle: writes down what is started and stopped; `broken` profiles do not come up."""

    def __init__(self, *broken: str) -> None:
        self.said: list[str] = []
        self.broken = broken

    def stop(self, record: ServerRecord) -> None:
        self.said.append("stop")

    def start_ready(self, name: str, declared: DesiredState, ports: Ports, *rest: object) -> ServerRecord:
        self.said.append(f"start {declared.profile.name} at {ports.inference}")
        if declared.profile.name in self.broken:
            raise SlotwiseError(f"{declared.profile.name} is broken", "look")
        return record()


@pytest.fixture
def servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Servers:
    made = Servers(*getattr(request, "param", ()))
    monkeypatch.setattr(apply.lifecycle, "stop", made.stop)
    monkeypatch.setattr(apply, "start_ready", made.start_ready)
    return made


def test_models_keep_the_names_that_they_were_registered_under(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[tuple[object, ...]] = []
    client = SimpleNamespace(
        register=lambda archive, name, **settings: registered.append((archive, name)),
        wait_ready=lambda name, workers, **about: registered.append((name, about["version"])),
    )
    monkeypatch.setattr(apply, "ManagementClient", lambda record: nullcontext(client))
    expected = list[str]()

    def start(*about: object, **settings: list[str]) -> ServerRecord:
        expected.extend(settings["expected"])
        return record()

    monkeypatch.setattr(apply.lifecycle, "start", start)
    renamed = as_blue()
    for registrations in (apply.new_registrations(renamed, declared()), apply.old_registrations(renamed)):
        apply.start_ready("default", declared(), Ports(), renamed, registrations, lambda message: None)
    assert registered == 2 * [("digits.mar", "blue"), ("blue", "1.0")]
    assert expected == 2 * ["blue"]  # so that the server has who asks for it wait


def test_the_question_before_a_restart_is_no_part_of_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = io.StringIO("y\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("slotwise.frontend.process.running", lambda name: None)
    command._ask(state(), [Difference(None, None, "log_level", "WARN", "INFO", "restart")], yes=False)
    printed = capsys.readouterr()
    assert (printed.out.strip(), "go on?" in printed.err) == ("", True)


def test_a_name_that_cannot_be_kept_is_refused_before_anything_ends(servers: Servers) -> None:
    closed = replace(declared("ei"), profile=declared("ei").profile.but({"model_api": False}, "a test"))
    with pytest.raises(SlotwiseError, match=r"digits\.mar is registered as blue, but is called digits"):
        apply.carry_out(as_blue(), closed, RESTART, servers.said.append)
    assert servers.said == []


RESTART = [Difference(None, None, "profile", "cpu", "ei", "restart")]


def test_a_restart_keeps_the_ports(servers: Servers) -> None:
    apply.carry_out(state(), declared("ei"), RESTART, servers.said.append)
    assert [one for one in servers.said if one.startswith("st")] == [
        "stopping torchserve with the profile cpu",
        "stop",
        "start ei at 8080",
    ]


@pytest.mark.parametrize(("versions", "same"), [("12", True), ("21", False), ("1", False), ("123", False), ("", True)])
def test_what_changed_while_the_new_server_started_is_not_undone(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, versions: str, same: bool
) -> None:
    """The first version is the default one. A server that has died by then undoes nothing."""

    def lives(client: object) -> list[LiveModel]:
        if not versions:
            raise SlotwiseError("it does not answer")
        return [replace(LIVE, version=version) for version in versions]

    def swapped(old: ServerRecord, start_new: Callable[[str, Ports], ServerRecord], say: object) -> ServerRecord:
        return start_new("default-b", Ports())

    monkeypatch.setattr(apply, "live_models", lives)
    monkeypatch.setattr(apply, "ManagementClient", nullcontext)
    monkeypatch.setattr(apply.process, "running", lambda name: "a gateway")
    monkeypatch.setattr(apply.swap, "swap", swapped)
    monkeypatch.setattr(apply, "need_no_rollout", lambda name: None)
    (model,) = state().models
    before = replace(state(), models=tuple(replace(model, live=replace(LIVE, version=version)) for version in "12"))
    with nullcontext() if same else pytest.raises(SlotwiseError, match="became the default ones meanwhile"):
        apply.carry_out(before, declared("ei"), RESTART, servers.said.append)


def test_what_was_registered_before_a_restart_began_is_not_lost(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a person was asked whether to go on, for example."""
    monkeypatch.setattr(apply, "live_models", lambda client: [LIVE, replace(LIVE, name="registered-meanwhile")])
    monkeypatch.setattr(apply, "ManagementClient", nullcontext)
    with pytest.raises(SlotwiseError, match="meanwhile: nothing was changed"):
        apply.carry_out(state(), declared("ei"), RESTART, servers.said.append)
    assert servers.said == []


@pytest.mark.parametrize("servers", [["ei"]], indirect=True)
def test_the_old_profile_comes_back(servers: Servers) -> None:
    with pytest.raises(SlotwiseError, match="the profile did not come up, cpu serves again: ei is broken"):
        apply.carry_out(state(), declared("ei"), RESTART, lambda message: None)
    assert servers.said == ["stop", "start ei at 8080", "start cpu at 8080"]


@pytest.mark.parametrize("servers", [["ei", "cpu"]], indirect=True)
def test_when_neither_comes_up_both_reasons_are_said(servers: Servers) -> None:
    with pytest.raises(SlotwiseError, match=r"did not come up \(ei is broken\), nor did the old one: cpu is broken"):
        apply.carry_out(state(), declared("ei"), RESTART, lambda message: None)


def test_a_full_disk_leaves_the_profile_that_the_server_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(record: ServerRecord, folder: Path | None = None) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def asked(record: ServerRecord) -> None:
        pytest.fail("something was scaled")

    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    monkeypatch.setattr(apply, "ManagementClient", asked)
    monkeypatch.setattr(ServerRecord, "save", full)
    before = replace(state(), record=replace(record(), state_dir=tmp_path))
    (tmp_path / "profile.json").write_text(before.started_with.model_dump_json())
    with pytest.raises(OSError, match="No space left"):
        apply.scale(before, declared("cpu", batch_size="7"), [], print)
    assert before.record.effective_profile().batch_size == before.started_with.batch_size
    assert [file.name for file in tmp_path.glob("*partial")] == []
