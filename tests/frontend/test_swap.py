"""Whatever ends a swap half-way: every server that still runs has a record by which `slotwise stop` finds it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from slotwise.commands.server import stop
from slotwise.errors import SlotwiseError
from slotwise.frontend.rollout import swap
from slotwise.server import lifecycle
from slotwise.server.lifecycle import Ports, all_running, running
from tests.support.sleeping_servers import Start, sleeping_servers

Status = Callable[[], dict[str, Any]]


@dataclass
class Gateway:
    """A gateway that says what `status` gives."""

    status: Status
    lives: bool = True
    url: str = "http://gateway"
    drain_s: float = 0.0

    def alive(self) -> bool:
        return self.lives


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a process that stands for a server."""
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    monkeypatch.setattr(lifecycle, "run_start_module", lambda record, options: psutil.Process(record.pid).kill())
    with sleeping_servers("torchserve") as start:
        yield start


def fails(error: BaseException) -> Status:
    def status() -> dict[str, Any]:
        raise error

    return status


def followed() -> dict[str, Any]:
    record = running()
    assert record is not None
    return {"server": {"pid": record.pid}, "leaving": 0}


def pids() -> list[int]:
    return [record.pid for record in all_running()]


def test_an_old_server_that_still_answers_is_not_stopped(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    old = start("default", Ports())
    monkeypatch.setattr(swap, "DRAIN_GRACE_S", 0.2)
    monkeypatch.setattr(swap, "running", lambda name: Gateway(lambda: {**followed(), "leaving": 3}))
    with pytest.raises(SlotwiseError, match="3 request"):
        swap.swap(old, start)
    assert old.alive()


@pytest.mark.parametrize("error", [SlotwiseError("does not answer"), KeyboardInterrupt()])
def test_when_the_gateway_does_not_follow_both_are_found(
    start: Start, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    old, said = start("default", Ports()), list[str]()
    monkeypatch.setattr(swap, "running", lambda name: Gateway(fails(error)))
    with pytest.raises(type(error)):
        swap.swap(old, start, said.append)
    new = running()
    assert new is not None
    assert pids() == [new.pid, old.pid]
    assert said[-1] == "both servers run: `slotwise stop default-old` ends the old one, `slotwise stop default` the new one"
    stop("default-old")
    assert pids() == [new.pid]
    stop("default")
    assert pids() == []
    assert not new.alive()
    assert not old.alive()


def test_when_the_gateway_is_gone_the_old_one_is_stopped(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    old = start("default", Ports())
    monkeypatch.setattr(swap, "running", lambda name: Gateway(fails(SlotwiseError("gone")), lives=False))
    new = swap.swap(old, start)
    assert running() == new
    assert pids() == [new.pid]
    assert not old.alive()


@pytest.mark.parametrize("name", ["default-b", "default-old"])
def test_a_server_that_was_started_by_a_name_that_is_needed_is_left_alone(start: Start, name: str) -> None:
    old, other = start("default", Ports()), start(name, Ports())
    with pytest.raises(SlotwiseError, match=f"a server {name} runs, and default needs that name"):
        swap.swap(old, start)
    assert sorted(pids()) == sorted([old.pid, other.pid])


def test_the_next_swap_ends_what_one_that_failed_left(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    old = start("default", Ports())
    monkeypatch.setattr(swap, "running", lambda name: Gateway(fails(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        swap.swap(old, start)
    second = running()
    assert second is not None
    monkeypatch.setattr(swap, "running", lambda name: Gateway(followed))
    third = swap.swap(second, start)
    assert pids() == [third.pid]
    assert not old.alive()
    assert not second.alive()


def test_an_old_host_of_ours_may_answer_as_long_as_its_gateway_lets_a_request_take(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers what it has in hand when it is told to end: no gateway counts that."""
    ended, end = list[float](), lifecycle.end

    def seen(run_id: str, patience_s: float, grace_s: float = 5.0) -> None:
        ended.append(patience_s)
        end(run_id, patience_s, grace_s)

    monkeypatch.setattr(lifecycle, "end", seen)
    monkeypatch.setattr(swap, "running", lambda name: Gateway(followed, drain_s=300.0))
    old = dataclasses.replace(start("default", Ports()), kind="slotwise")
    swap.swap(old, start)
    assert max(ended) >= 300.0
    assert not old.alive()
