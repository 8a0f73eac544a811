"""apply on real servers: scaling, a restart, the way back, and from one server to the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwise.archive.inspection import inspect
from slotwise.client.inference import InferenceClient
from slotwise.client.management import ManagementClient
from slotwise.deploy import apply, deploy, drift
from slotwise.deploy.drift import DesiredState, ObservedState
from slotwise.errors import SlotwiseError
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import need, start, stop
from slotwise.server.record import Kind

pytestmark = pytest.mark.server

NAME = "swapped"
MINE = """
[registration]
batch_size = 4
initial_workers = 1
[worker]
engine = "torch"
threads = 1
"""


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Path]:
    """A project of its own with the profile `mine`; a TorchServe that was started with it serves digits."""
    folder = tmp_path_factory.mktemp("project")
    profile = folder / "profiles" / "mine.toml"
    profile.parent.mkdir()
    profile.write_text(MINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("SLOTWISE_HOME", str(tmp_path_factory.mktemp("apply")))
        wanted = load_profile("mine", environ={})
        record = start(NAME, "torchserve", wanted, model_store=store, ports=Ports.free())
        try:
            info = inspect(store / "digits.mar")
            with ManagementClient(record) as client:
                deploy.deploy(client, info, deploy.registration(info, wanted, {}))
            yield folder
        finally:
            stop(need(NAME))


def brought_to(kind: Kind = "torchserve", **overrides: str) -> tuple[list[str], ObservedState]:
    """Apply the profile `mine`: what differed, and the state afterwards, which has to be as declared."""
    before, declared = drift.read(need(NAME)), DesiredState.load("mine", overrides, kind)
    found = drift.differences(before, declared)
    if found:
        apply.carry_out(before, declared, found, lambda message: None)
    after = drift.read(need(NAME))
    assert drift.differences(after, declared) == []
    return [f"{one.key} {one.live} -> {one.declared}" for one in found], after


def pids(state: ObservedState) -> set[int]:
    return {worker.pid for worker in state.models[0].live.workers}


def answers() -> bool:
    with InferenceClient(need(NAME)) as client:
        return client.predict("digits", (Path(__file__).parents[2] / "models/digits/examples/7.png").read_bytes()).is_success


def test_nothing_to_change_scaling_restart_and_the_way_back(folder: Path) -> None:
    found, first = brought_to()
    assert found == []

    found, scaled = brought_to(initial_workers="2")
    assert found == ["workers 1 -> 2"]
    assert scaled.record.pid == first.record.pid
    assert pids(first) < pids(scaled)

    (folder / "profiles" / "mine.toml").write_text(MINE + "padding = 'static'\n")
    found, restarted = brought_to(batch_size="8")
    assert found == ["batch_size 4 -> 8", "workers 2 -> 1", "padding none -> static"]
    assert restarted.record.pid != first.record.pid
    assert restarted.record.ports == first.record.ports
    live = restarted.models[0].live
    assert (live.batch_size, live.padding, live.engine, live.profile) == (8, "static", "torch", "mine")

    with pytest.raises(SlotwiseError, match="the profile did not come up, mine serves again: digits does not become ready"):
        brought_to(engine="ctranslate2")
    back = drift.read(need(NAME))
    assert (back.models[0].live.batch_size, back.models[0].live.engine) == (8, "torch")
    assert answers()


def test_from_torchserve_to_mms() -> None:
    found, state = brought_to("mms", batch_size="16")
    assert "server torchserve -> mms" in found
    assert state.record.kind == "mms"
    assert state.models[0].live.batch_size == 16
    assert answers()
