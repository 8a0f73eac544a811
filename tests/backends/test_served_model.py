"""The local host with real processes that misbehave in every way: whatever one request does, nobody else loses anything."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from slotwise.archive.guarding.foreign import GUARD
from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused
from slotwise.backends.local import model_queue, served_model
from slotwise.backends.local.gpus import Gpus
from slotwise.backends.local.prints import FilePrints
from slotwise.backends.local.served_model import ModelSettings, ServedModel
from slotwise.backends.local.worker_link import WorkerLink
from slotwise.host.model_versions import ModelVersions
from tests.backends.simulation.recorded import again
from tests.support.waiting import until_true

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


def test_no_number_that_a_worker_says_ends_it(settings: ModelSettings) -> None:
    async def history() -> None:
        async with serving(settings, 1) as served:
            served.measured = partial(ModelVersions().measured, "m")
            bodies = ["1", "numbers", "2"]
            answers = await asyncio.gather(*(served.answer(asked(body)) for body in bodies))
            assert [answer.body for answer in answers] == [b"answer to " + body.encode() for body in bodies]
            assert served.ends.total() == 0

    asyncio.run(history())


async def waits_while_the_last_worker_goes(served: ServedModel) -> asyncio.Task[BackendAnswer]:
    """A request that waits; the only worker has answered what it had, and is the last one."""
    first = asyncio.create_task(served.answer(asked("slow")))
    while not any(worker.busy for worker in served.queue.workers):
        await asyncio.sleep(0.01)
    waiting = asyncio.create_task(served.answer(asked("1")))
    await asyncio.sleep(0)
    served.scale(0)
    assert (await first).body == b"answer to slow"
    return waiting


def test_what_waits_for_a_model_that_goes_is_refused_when_it_has_gone(settings: ModelSettings) -> None:
    async def history() -> None:
        async with serving(settings, 1) as served:
            waiting = await waits_while_the_last_worker_goes(served)
            await served.close(0.2)
            with pytest.raises(Refused) as refused:
                await asyncio.wait_for(waiting, 5)
            assert refused.value.status == 503
            assert served.ledger.open == 0

    asyncio.run(history())


def test_what_waits_for_a_model_without_workers_is_refused_at_once(settings: ModelSettings) -> None:
    """As newcomers are; not at its deadline."""

    async def history() -> None:
        async with serving(settings, 1) as served:
            waiting = await waits_while_the_last_worker_goes(served)
            with pytest.raises(Refused, match="the model has no workers") as refused:
                await asyncio.wait_for(waiting, 30)
            assert (refused.value.status, refused.value.retry_after_s, served.ledger.open) == (503, 1, 0)

    asyncio.run(history())


def test_a_death_names_the_file_of_what_led_to_it_which_runs_again(
    settings: ModelSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def history() -> None:
        async with serving(replace(settings, histories=tmp_path / "histories"), WORKERS) as served:
            bodies = [str(i) for i in range(INNOCENTS)]
            bodies[9] = "exit"
            await asyncio.gather(*(served.answer(asked(body)) for body in bodies), return_exceptions=True)
            while served.ends["died"] < 2:
                await asyncio.sleep(0.01)

    with caplog.at_level("WARNING"):
        asyncio.run(history())
    files = sorted((tmp_path / "histories").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    assert len(files) == 2  # not for the workers that were told to go
    assert all(str(file) in caplog.text for file in files)
    for file in files:
        problems, then, same = again(file)
        assert problems == []
        assert same == then > 0
    last = [json.loads(line)["event"] for line in files[-1].read_text().splitlines()[1:]]
    assert {"arrived", "sent", "answered", "died", "requeued", "convicted"} <= set(last)


def test_a_copy_to_another_archive_has_headers_of_its_own() -> None:
    """A queue of sequences changes them: the request may come to the old archive after it."""
    request = asked("1")
    request.headers["ts_request_sequence_id"] = "mine"
    request.to_model("new").headers["ts_request_sequence_id"] = "owner mine"
    assert request.headers == {"ts_request_sequence_id": "mine"}


def test_a_request_that_must_not_be_sent_twice_is_not(settings: ModelSettings) -> None:
    async def history() -> None:
        guilty, innocent = asked("exit", repeatable=False), asked("1", repeatable=False)
        async with serving(settings, 1) as served:
            outcomes = await asyncio.gather(served.answer(guilty), served.answer(innocent), return_exceptions=True)
            assert [str(outcome) for outcome in outcomes] == [
                "the worker ended while it had this request, which must not be sent twice"
            ] * 2

    asyncio.run(history())


def test_workers_that_are_killed_together_convict_nobody(settings: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_queue, "CALM_S", 2.0)  # the second one dies within it, also on a busy machine

    async def history() -> None:
        async with serving(settings, WORKERS) as served:
            await asyncio.gather(*(served.answer(asked(str(i))) for i in range(8)))
            while len(served.queue.workers) < WORKERS:
                await asyncio.sleep(0.01)
            innocent = asked("slow")
            answer = asyncio.ensure_future(served.answer(innocent))
            await until_true(lambda: any(worker.busy for worker in served.queue.workers))
            links = sorted(served.links, key=lambda link: not link.worker.busy)
            for dead, link in enumerate(links, 1):  # first the one that has it
                os.kill(link.pid, signal.SIGKILL)
                await until_true(lambda: served.ends["died"] >= dead)  # noqa: B023
            assert (await answer).body == b"answer to slow"
            assert (innocent.convicted, innocent.sent) == (0, "alone")

    asyncio.run(history())


def test_workers_that_have_answered_are_replaced_at_once(settings: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one body in 500 that ends its worker would keep the model waiting for half of the time."""
    monkeypatch.setattr(served_model, "PAUSES_S", (0.0, *[600.0] * 6))
    monkeypatch.setattr(served_model, "QUICK_STARTS", 1)  # the guilty one ends a new worker, too

    async def history() -> None:
        async with asyncio.timeout(100), serving(settings, 1) as served:
            for i in range(4):
                assert (await served.answer(asked(str(i)))).body == b"answer to %d" % i
                with pytest.raises(Refused, match="ended on this request"):
                    await served.answer(asked("exit"))

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
            await until_true(lambda: leaving.done())  # where this machine stood still, the late one was refused at once
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


def test_workers_of_all_models_go_round_the_gpus_and_the_next_one_gets_what_a_dead_one_had(settings: ModelSettings) -> None:
    """Three GPUs that are not there: what each worker would see of them."""

    def seen(served: ServedModel) -> list[str]:
        environs = (Path(f"/proc/{link.pid}/environ").read_bytes().split(b"\0") for link in served.links)
        return sorted(one[21:].decode() for environ in environs for one in environ if one.startswith(b"CUDA_VISIBLE_DEVICES="))

    async def ready(served: ServedModel, count: int) -> None:
        while [worker.status for worker in served.workers()] != ["READY"] * count:
            await asyncio.sleep(0.05)

    async def history() -> None:
        gpus = Gpus.visible(3, {"CUDA_VISIBLE_DEVICES": "2,5,7,8"})
        on_gpus = replace(settings, gpus=gpus)
        async with serving(on_gpus, 2) as first, serving(replace(on_gpus, name="n"), 2) as second:
            await ready(first, 2)
            await ready(second, 2)
            assert sorted(seen(first) + seen(second)) == ["2", "2", "5", "7"]
            assert gpus.workers == {"2": 2, "5": 1, "7": 1}
            before = seen(first)
            os.kill(first.links[1].pid, signal.SIGKILL)
            while not first.ends["died"]:
                await asyncio.sleep(0.05)
            await ready(first, 2)
            assert seen(first) == before
        assert gpus.workers == {"2": 0, "5": 0, "7": 0}

    asyncio.run(history())


def test_gpus_that_whoever_started_the_server_hides_stay_hidden() -> None:
    assert Gpus.visible(2, {"CUDA_VISIBLE_DEVICES": ""}).take() == ""
    assert [Gpus.visible(2, {}).take(), Gpus.visible(0, {}).take()] == ["0", ""]


def test_a_model_that_names_its_gpus_gets_those_and_they_count_for_all() -> None:
    every = Gpus.visible(3, {"CUDA_VISIBLE_DEVICES": "2,5,7"})
    some = every.only([1, 2])
    assert [some.take(), some.take(), some.take(), every.take()] == ["5", "7", "5", "2"]
    some.give_back("5")
    assert every.workers == {"2": 1, "5": 1, "7": 1}


def test_a_model_that_cannot_start_refuses_at_once_and_says_why_to_the_operator(settings: ModelSettings) -> None:
    worker = settings.model_dir / GUARD / "hosts" / "framed.py"
    worker.write_text("raise RuntimeError('there are no weights')\n")

    async def history() -> None:
        served = ServedModel(settings)
        served.scale(1)
        while not served.failure:
            await asyncio.sleep(0.05)
        assert "there are no weights" in served.failure
        with pytest.raises(Refused) as refused:  # it may name a path
            await served.answer(asked("1"))
        assert (refused.value.status, str(refused.value)) == (503, "the model's workers do not start")
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


def test_one_that_cannot_start_refuses_nobody_when_the_one_that_could_dies(settings: ModelSettings) -> None:
    worker = settings.model_dir / GUARD / "hosts" / "framed.py"
    good = worker.read_text()

    async def history() -> None:
        served = ServedModel(settings)
        served.scale(1)
        while not served.is_ready:
            await asyncio.sleep(0.05)
        worker.write_text("raise RuntimeError('there are no weights')\n")
        served.scale(2)
        while not served.failure:
            await asyncio.sleep(0.05)
        worker.write_text(good)
        served.links[0].end("it is ended")
        while served.queue.workers:
            await asyncio.sleep(0.01)
        assert (await served.answer(asked("1"))).body == b"answer to 1"
        await served.close(5)

    asyncio.run(history())


def test_a_worker_that_cannot_be_opened_is_tried_again(settings: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, tried = WorkerLink.open, []

    async def opens(*about: object, **settings: object) -> object:
        tried.append(1)
        if len(tried) == 1:
            raise ValueError("embedded null byte")
        return await opened(*about, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(WorkerLink, "open", opens)

    async def history() -> None:
        served = ServedModel(settings)
        served.scale(1)
        while not served.is_ready:
            await asyncio.sleep(0.05)
        await served.close(5)

    asyncio.run(asyncio.wait_for(history(), 30))
