"""A worker that grows is replaced between two batches, and nobody notices; one that cannot be smaller stays."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os

import psutil
import pytest

from slotwise.backends.local import worker_memory
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.worker_memory import WorkerMemory
from slotwise.profiles.memory import resident_bytes
from tests.backends.test_served_model import asked, serving, settings
from tests.support.waiting import until_true

__all__ = ["settings"]  # the fixture
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_memory, "LOOK_S", 0.05)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_grows_is_replaced_and_nobody_waits_for_it(settings: ModelSettings, workers: int) -> None:
    limited = dataclasses.replace(settings, max_memory_bytes=150 * MIB)

    async def history() -> None:
        async with serving(limited, workers) as served:
            await served.answer(asked("first"))
            first = {link.pid for link in served.links}
            seen, answers = set(first), 0
            while len(served.ends) < 1 or served.ends["memory"] < 3:
                many = await asyncio.gather(*(served.answer(asked(f"{'grow' if i == 3 else 'n'}{i}")) for i in range(8)))
                answers += len(many)
                assert all(one.status == 200 for one in many)
                seen |= {link.pid for link in served.links}
                assert served.queue.workers, "there is always one that is ready"
                assert answers < 4000
            assert len(seen) > len(first)

            def settled() -> bool:
                """All that have grown are replaced, one that grew since the last look among them."""
                large = any(resident_bytes(link.pid) > limited.max_memory_bytes for link in served.links)
                return not large and len(served.links) == len(served.queue.workers) == workers

            await until_true(settled)
            assert served.ledger.open == 0
            assert served.ledger.ended["refused"] == 0

    asyncio.run(history())


def test_one_that_takes_more_as_soon_as_it_starts_is_left_alone(
    settings: ModelSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async def history() -> None:
        async with serving(dataclasses.replace(settings, max_memory_bytes=MIB), 1) as served:
            await served.answer(asked("first"))
            pid = served.links[0].pid
            await asyncio.sleep(0.5)  # some looks
            await served.answer(asked("second"))
            assert [link.pid for link in served.links] == [pid]
            assert not served.ends

    asyncio.run(history())
    assert "at its start, more than max_memory_mb: it stays" in caplog.text


class One:
    """A worker as it is watched."""

    def __init__(self, name: str, status: str = "READY") -> None:
        self.name, self.pid, self.status = name, os.getpid(), status

    def retire(self) -> None:
        self.status = "UNLOADING"


def test_nobody_leaves_before_another_one_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_memory, "resident_bytes", lambda pid: 2 * MIB)
    memory, old, other = WorkerMemory(MIB), One("old"), One("new", "STARTING")
    assert memory.look([old, other]) == 1
    assert memory.look([old, other]) == 0
    memory.settle([old, other], 1)
    assert old.status == "READY"
    other.status = "READY"
    memory.settle([old, other], 1)
    assert (old.status, memory.leaving) == ("UNLOADING", [])


def test_who_is_to_leave_goes_first_when_there_are_to_be_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_memory, "resident_bytes", lambda pid: 2 * MIB)
    memory, old, good = WorkerMemory(MIB), One("old"), One("good")
    memory.look([old])
    memory.settle([old, good], 1)
    assert (old.status, good.status) == ("UNLOADING", "READY")


def test_while_nobody_can_look_at_processes_nobody_leaves_and_they_are_still_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file_left(process: psutil.Process) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    memory, mine = WorkerMemory(1), One("mine")
    with monkeypatch.context() as patched:
        patched.setattr(psutil.Process, "memory_info", no_file_left)
        assert memory.look([mine]) == 0
    assert memory.look([mine]) == 1
