"""The local host with real processes that misbehave in every way: whatever one request does, nobody else loses anything."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from slotwise.archive.guarding.foreign import GUARD
from slotwise.backends.exchange import BackendRequest, Refused
from slotwise.backends.local import model_queue
from slotwise.backends.local.prints import FilePrints
from slotwise.backends.local.served_model import ModelSettings, ServedModel

CRIMES = ["exit", "segfault", "stop", "hang", "close", "junk", "text", "half", "twice", "unasked", "early", "status", "report"]
WORKERS, INNOCENTS = 2, 24


@dataclass
class Asked(BackendRequest):
    """A request that knows whether it was convicted."""

    convicted: int = 0

    def convict(self) -> None:
        self.convicted += 1


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSettings:
    """A model whose worker is misbehaving.py."""
    monkeypatch.setattr(model_queue, "SILENT_S", 1.5)
    hosts = tmp_path / "model" / GUARD / "hosts"
    hosts.mkdir(parents=True)
    for folder in (hosts, hosts.parent):
        (folder / "__init__.py").touch()
    shutil.copy(Path(__file__).parent / "misbehaving.py", hosts / "framed.py")
    return ModelSettings(
        name="m",
        version="1",
        archive=tmp_path / "m.mar",
        model_dir=tmp_path / "model",
        environ=dict(os.environ),
        prints=FilePrints(tmp_path / "log"),
        batch_size=4,
        response_timeout_s=3.0,
    )


@asynccontextmanager
async def serving(settings: ModelSettings, workers: int) -> AsyncIterator[ServedModel]:
    """The model with so many workers; all of it is closed at the end."""
    served = ServedModel(settings)
    served.scale(workers)
    try:
        yield served
    finally:
        await served.close(5)


def asked(body: str, **changes: object) -> Asked:
    return Asked("m", time.monotonic() + 120, f"r-{body}", "/predictions/m", {}, body.encode(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("crime", CRIMES)
def test_whatever_a_request_does_to_its_worker_nobody_else_loses_anything(settings: ModelSettings, crime: str) -> None:
    async def history() -> None:
        guilty = asked(crime)
        innocents = [asked(str(i)) for i in range(INNOCENTS)]
        async with serving(settings, WORKERS) as served:
            answers = await asyncio.gather(
                *map(served.answer, innocents[: INNOCENTS // 2]),
                served.answer(guilty),
                *map(served.answer, innocents[INNOCENTS // 2 :]),
                return_exceptions=True,
            )
            outcome = answers.pop(INNOCENTS // 2)
            assert [getattr(answer, "body", answer) for answer in answers] == [b"answer to " + one.body for one in innocents]
            if (
                crime == "twice"
            ):  # its own answer had come, and what came after it ended the worker: nobody can tell whose it was
                assert getattr(outcome, "body", b"") == b"answer to twice"
            else:
                assert isinstance(outcome, Refused)
                assert (outcome.status, guilty.convicted) == (500, 1)
            assert served.ledger.open == 0
        assert served.links == []

    asyncio.run(history())


def test_a_request_that_must_not_be_sent_twice_is_not(settings: ModelSettings) -> None:
    async def history() -> None:
        guilty, innocent = asked("exit", repeatable=False), asked("1", repeatable=False)
        async with serving(settings, 1) as served:
            outcomes = await asyncio.gather(served.answer(guilty), served.answer(innocent), return_exceptions=True)
            assert [str(outcome) for outcome in outcomes] == [
                "the worker ended while it had this request, which must not be sent twice"
            ] * 2

    asyncio.run(history())


def test_workers_that_are_killed_together_convict_nobody(settings: ModelSettings) -> None:
    async def history() -> None:
        async with serving(settings, WORKERS) as served:
            await asyncio.gather(*(served.answer(asked(str(i))) for i in range(8)))
            while len(served.queue.workers) < WORKERS:
                await asyncio.sleep(0.01)
            innocent = asked("slow")
            answer = asyncio.ensure_future(served.answer(innocent))
            await asyncio.sleep(0.1)
            for link in sorted(served.links, key=lambda link: not link.worker.busy):  # first the one that has it
                os.kill(link.pid, signal.SIGKILL)
                await asyncio.sleep(0.1)
            assert (await answer).body == b"answer to slow"
            assert (innocent.convicted, innocent.sent) == (0, "alone")

    asyncio.run(history())


def test_a_client_that_leaves_and_a_deadline_that_passes(settings: ModelSettings) -> None:
    async def history() -> None:
        async with serving(settings, 1) as served:
            await served.answer(asked("0"))
            hanging = asyncio.ensure_future(served.answer(asked("hang")))
            await asyncio.sleep(0.1)
            leaving = asyncio.ensure_future(served.answer(asked("1")))
            late = asked("2")
            late.deadline = time.monotonic() + 0.3
            await asyncio.sleep(0.1)
            leaving.cancel()
            with pytest.raises(Refused, match="deadline"):
                await served.answer(late)
            assert served.queue.ledger.ended["gone"] == 1
            with pytest.raises(Refused, match="ended on this request"):
                await hanging
        assert served.ledger.open == 0

    asyncio.run(history())


def test_no_worker_gets_what_a_client_has_left_and_one_that_has_it_goes_on(settings: ModelSettings) -> None:
    """Else whoever sends what ends workers would hang up at once, and never be known."""

    async def history() -> None:
        async with serving(settings, 1) as served:
            await served.answer(asked("0"))
            killer, waits = asked("hang"), asked("1")
            in_hand = asyncio.ensure_future(served.answer(killer))
            await asyncio.sleep(0.1)
            waiting = asyncio.ensure_future(served.answer(waits))
            await asyncio.sleep(0.1)
            killer.leave()
            waits.leave()
            with pytest.raises(Refused, match="client has gone"):
                await waiting
            with pytest.raises(Refused, match="ended on this request"):
                await in_hand
            assert (killer.convicted, served.ledger.ended["gone"]) == (1, 1)

    asyncio.run(history())


def test_a_model_that_cannot_start_says_why_and_refuses_at_once(settings: ModelSettings) -> None:
    worker = settings.model_dir / GUARD / "hosts" / "framed.py"
    worker.write_text("raise RuntimeError('there are no weights')\n")

    async def history() -> None:
        served = ServedModel(settings)
        served.scale(1)
        while not served.failure:
            await asyncio.sleep(0.05)
        assert "there are no weights" in served.failure
        with pytest.raises(Refused, match="there are no weights") as refused:
            await served.answer(asked("1"))
        assert refused.value.status == 503
        await served.close(5)

    asyncio.run(history())


def test_workers_are_added_and_taken_away_and_the_oldest_stays(settings: ModelSettings) -> None:
    async def ready(served: ServedModel, count: int) -> list[int]:
        while [worker.status for worker in served.workers()] != ["READY"] * count:
            await asyncio.sleep(0.05)
        return [worker.pid for worker in served.workers()]

    async def history() -> None:
        served = ServedModel(settings)
        served.scale(1)
        first = await ready(served, 1)
        served.scale(3)
        assert (await ready(served, 3))[:1] == first
        served.scale(1)
        assert await ready(served, 1) == first
        await served.close(5)

    asyncio.run(history())
