"""Streams of the local host with real workers: killed in the middle, lying, hanging; who leaves; what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.guarding.foreign import GUARD
from slotwise.archive.inspection import extract
from slotwise.backends.exchange import BackendAnswer, BackendRequest, RawHeaders, Refused
from slotwise.backends.local import model_queue, served_model, worker_link
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.prints import FilePrints
from slotwise.backends.local.queue_members import StreamWorker
from slotwise.backends.local.served_model import Link, ServedModel
from tests.backends.streaming_models import GENERATOR, STEPS, streaming_archive
from tests.backends.test_archives import HANDLER

LIES = ["nobody", "nobodys-end", "after", "twice", "lines", "empty", "whole", "status", "done", "exit", "half", "hang"]

# Each step takes a moment: else a worker is through with a stream before a busy test has read a third of it.
SLOW_STEPS = STEPS.replace("import numpy as np", "import time, numpy as np").replace(
    "def step(self, rows):", "def step(self, rows):\n        time.sleep(0.005)"
)


@dataclass
class Pieces:
    """Takes pieces. at(self): called at each."""

    needed: bool = True
    got: list[bytes] = field(default_factory=list)
    at: Callable[[Pieces], None] = lambda pieces: None
    headers: RawHeaders = field(default_factory=list)

    def take(self, headers: RawHeaders, piece: bytes) -> None:
        self.got.append(piece)
        self.headers = headers
        self.at(self)

    @property
    def text(self) -> str:
        return "".join(json.loads(piece)["text"] for piece in self.got)


@dataclass
class StreamAsked(BackendRequest):
    """A request that knows whether it was convicted."""

    convicted: int = 0

    def convict(self) -> None:
        self.convicted += 1


def asked(body: str, name: str, pieces: Pieces | None, **changes: Any) -> StreamAsked:
    headers = {"content-type": "application/json", "x-request-id": name}
    request = StreamAsked("m", time.monotonic() + 120, name, "/predictions/m", headers, body.encode(), pieces=pieces)
    for key, value in changes.items():
        setattr(request, key, value)
    return request


def settings_of(folder: Path, model_dir: Path, archive: Path) -> ModelSettings:
    return ModelSettings(
        name="m", version="1", archive=archive, model_dir=model_dir,
        environ={**os.environ, "SLOTWISE_PROFILE": "cpu"}, prints=FilePrints(folder / "log"),
        batch_size=4, response_timeout_s=60.0,
    )  # fmt: skip


@asynccontextmanager
async def serving_streams(settings: ModelSettings, workers: int) -> AsyncIterator[ServedModel]:
    """The model with so many workers, all of them ready; at the end every slot must be free."""
    served = ServedModel(settings)
    served.scale(workers)
    try:
        while len(served.queue.workers) < workers:
            await asyncio.sleep(0.02)
        yield served
        until = time.monotonic() + 30
        while any(worker.busy for worker in served.queue.workers) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        assert not any(worker.busy for worker in served.queue.workers)
        assert served.ledger.open == 0
    finally:
        await served.close(5)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("archives")
    handlers = {"words": GENERATOR, "sums": SLOW_STEPS, "twice": HANDLER}
    return {name: streaming_archive(folder, name, handler) for name, handler in handlers.items()}


@pytest.fixture
def words(archives: dict[str, Path], tmp_path: Path) -> ModelSettings:
    return settings_of(tmp_path, extract(archives["words"], tmp_path / "words"), archives["words"])


@pytest.fixture
def sums(archives: dict[str, Path], tmp_path: Path) -> ModelSettings:
    return settings_of(tmp_path, extract(archives["sums"], tmp_path / "sums"), archives["sums"])


@pytest.fixture
def lying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSettings:
    """A model whose worker is lying_streams.py."""
    monkeypatch.setattr(model_queue, "SILENT_S", 1.5)
    hosts = tmp_path / "model" / GUARD / "hosts"
    hosts.mkdir(parents=True)
    for folder in (hosts, hosts.parent):
        (folder / "__init__.py").touch()
    shutil.copy(Path(__file__).parent / "lying_streams.py", hosts / "framed.py")
    return replace(settings_of(tmp_path, tmp_path / "model", tmp_path / "m.mar"), response_timeout_s=5.0)


def has(link: Link, pieces: Pieces) -> bool:
    """Whether that worker has the request of these pieces."""
    return any(one.request.pieces is pieces for one in link.worker.in_hand.values())


def of_words(count: int) -> str:
    return "".join(f"word{i} " for i in range(count))


def test_streams_and_whole_answers_share_a_worker_and_an_error_is_that_requests_alone(words: ModelSettings) -> None:
    async def history() -> None:
        async with serving_streams(words, 1) as served:
            sinks = [Pieces() if i % 3 else None for i in range(12)]
            requests = [asked(f"[{i + 1}]", f"r{i}", sink) for i, sink in enumerate(sinks)]
            early, late = asked("[]", "early", Pieces()), asked('[5, "raise", 2]', "late", Pieces())
            answers = await asyncio.gather(*map(served.answer, [*requests, early, late]))
            assert [answer.status for answer in answers] == [200] * 12 + [400, 500]
            for i, (sink, answer) in enumerate(zip(sinks, answers, strict=False)):
                assert (sink.text if sink else answer.body.decode()) == of_words(i + 1)
            assert (early.pieces.got, late.pieces.text) == ([], of_words(2))  # type: ignore[union-attr]

    asyncio.run(history())


@pytest.mark.parametrize("lie", LIES)
def test_whatever_a_worker_that_streams_does_nobody_else_loses_or_gets_a_piece_twice(lying: ModelSettings, lie: str) -> None:
    async def history() -> None:
        sinks = [Pieces() for _ in range(9)]
        guilty = asked(lie, "guilty", Pieces())
        innocents = [asked(str(i), f"r{i}", sink) for i, sink in enumerate(sinks)]
        async with serving_streams(lying, 2) as served:
            *answers, outcome = await asyncio.gather(*map(served.answer, [*innocents, guilty]), return_exceptions=True)
            for i, (sink, answer) in enumerate(zip(sinks, answers, strict=True)):
                assert isinstance(answer, BackendAnswer)
                assert answer.status == 200
                assert sink.got == [b'{"of": "%d", "i": %d}' % (i, k) for k in range(3)]
            if lie == "after":  # it was whole before the worker lied
                assert isinstance(outcome, BackendAnswer)
            else:
                assert isinstance(outcome, Refused)
                assert (outcome.status, guilty.convicted) == (500, 1)
            more = lie == "twice"  # in the next worker nobody can tell that its third piece is its first
            assert len(guilty.pieces.got) == 2 + more  # type: ignore[union-attr]

    asyncio.run(history())


def test_a_worker_whose_engine_is_dead_is_let_go_at_once(lying: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It beats on: a thread of the handler's may keep its process."""
    monkeypatch.setattr(worker_link, "REAP_S", 0.2)

    async def history() -> None:
        async with serving_streams(replace(lying, response_timeout_s=600.0), 2) as served:
            guilty = asked("dead", "guilty", Pieces())
            with pytest.raises(Refused) as refused:
                await asyncio.wait_for(served.answer(guilty), 30)
            assert (refused.value.status, guilty.convicted) == (500, 1)

    asyncio.run(history())


def test_what_a_client_fails_at_is_its_requests_and_not_its_workers(words: ModelSettings) -> None:
    def fail(pieces: Pieces) -> None:
        raise KeyError(len(pieces.got))

    async def history() -> None:
        async with serving_streams(words, 1) as served:
            sinks = [Pieces(), Pieces(at=fail), Pieces()]
            requests = [asked("[9]", f"r{i}", sink) for i, sink in enumerate(sinks)]
            answers = await asyncio.gather(*map(served.answer, requests), return_exceptions=True)
            assert [sink.text for sink in sinks] == [of_words(9), of_words(1), of_words(9)]
            assert isinstance(answers[1], KeyError)
            assert (served.ends.total(), {request.sent for request in requests}) == (0, {""})

    asyncio.run(history())


def test_a_worker_that_is_killed_in_the_middle_costs_no_stream_a_piece(sums: ModelSettings) -> None:
    async def history() -> None:
        async with serving_streams(sums, 2) as served:
            alone = [Pieces() for _ in range(6)]
            await asyncio.gather(*(served.answer(asked(f"{i + 1} 300", f"r{i}", sink)) for i, sink in enumerate(alone)))

            def kill(pieces: Pieces) -> None:
                if len(pieces.got) == 100:
                    (link,) = [link for link in served.links if has(link, pieces)]
                    os.kill(link.pid, signal.SIGKILL)

            sinks = [Pieces(at=kill if i == 2 else lambda pieces: None) for i in range(6)]
            requests = [asked(f"{i + 1} 300", f"r{i}", sink) for i, sink in enumerate(sinks)]
            answers = await asyncio.gather(*map(served.answer, requests))
            assert [answer.status for answer in answers] == [200] * 6
            assert [sink.got for sink in sinks] == [sink.got for sink in alone]
            assert "alone" in {request.sent for request in requests}

    asyncio.run(history())


def test_a_stream_that_ends_workers_is_convicted_and_its_mates_are_whole(words: ModelSettings) -> None:
    async def history() -> None:
        async with serving_streams(words, 1) as served:
            sinks = [Pieces() for _ in range(3)]
            mates = [asked('[60, "slow"]', f"r{i}", sink) for i, sink in enumerate(sinks)]
            guilty = asked('[9, "exit", 4]', "guilty", Pieces())
            *answers, outcome = await asyncio.gather(*map(served.answer, [*mates, guilty]), return_exceptions=True)
            assert [sink.text for sink in sinks] == [of_words(60)] * 3
            assert [getattr(answer, "status", answer) for answer in answers] == [200] * 3
            assert isinstance(outcome, Refused)
            assert (outcome.status, guilty.convicted, guilty.pieces.text) == (500, 1, of_words(4))  # type: ignore[union-attr]

    asyncio.run(history())


def test_workers_that_have_ended_a_stream_are_replaced_at_once(words: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a few bodies that end their workers would keep every stream waiting."""
    monkeypatch.setattr(served_model, "PAUSES_S", (0.0, *[600.0] * 6))
    monkeypatch.setattr(served_model, "QUICK_STARTS", 1)  # the guilty one ends a new worker, too

    async def history() -> None:
        async with asyncio.timeout(100), serving_streams(words, 1) as served:
            for i in range(4):
                await served.answer(asked("[2]", f"r{i}", sink := Pieces()))
                assert sink.text == of_words(2)
                with pytest.raises(Refused, match="ended on this request"):
                    await served.answer(asked('[9, "exit", 4]', f"guilty{i}", Pieces()))

    asyncio.run(history())


def test_a_client_that_leaves_frees_its_slot_and_a_deadline_does(words: ModelSettings) -> None:
    async def history() -> None:
        async with serving_streams(words, 1) as served:
            (worker,) = served.queue.workers
            assert isinstance(worker, StreamWorker)
            endless = [asked('[1000000, "slow"]', f"r{i}", Pieces() if i else None) for i in range(5)]
            endless[3].deadline = time.monotonic() + 0.5
            answers = [asyncio.ensure_future(served.answer(one)) for one in endless]
            while not endless[1].pieces.got:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
            answers[4].cancel()
            for one in endless[:3]:
                one.leave()
            for i, status in enumerate((499, 499, 499, 504)):
                with pytest.raises(Refused) as refused:
                    await answers[i]
                assert refused.value.status == status
            quick = Pieces()
            await served.answer(asked("[3]", "quick", quick))
            assert quick.text == of_words(3)

    asyncio.run(history())


def test_who_hangs_up_on_what_ends_workers_is_known_all_the_same(words: ModelSettings) -> None:
    async def history() -> None:
        async with serving_streams(words, 1) as served:
            guilty = asked('[9, "exit", 1]', "guilty", Pieces(at=lambda pieces: guilty.leave()))
            with pytest.raises(Refused):
                await served.answer(guilty)
            hangs = asked("exit", "hangs", Pieces())
            answer = asyncio.ensure_future(served.answer(hangs))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            hangs.leave()
            with pytest.raises(Refused) as refused:
                await answer
            assert (refused.value.status, hangs.convicted) in ((499, 0), (500, 1))  # before a worker had it, or after

    asyncio.run(history())


def test_a_reader_that_refuses_a_piece_ends_its_stream_alone(words: ModelSettings) -> None:
    async def history() -> None:
        def refuse(pieces: Pieces) -> None:
            raise Refused(429, "no memory")

        async with serving_streams(words, 1) as served:
            good = Pieces()
            bad = asked("[5]", "bad", Pieces(at=refuse))
            answer, outcome = await asyncio.gather(
                served.answer(asked("[5]", "good", good)), served.answer(bad), return_exceptions=True
            )
            assert (answer.status, good.text) == (200, of_words(5))  # type: ignore[union-attr]
            assert isinstance(outcome, Refused)
            assert outcome.status == 429

    asyncio.run(history())


def test_a_model_that_cannot_stream_says_what_it_can(archives: dict[str, Path], tmp_path: Path) -> None:
    settings = settings_of(tmp_path, extract(archives["twice"], tmp_path / "twice"), archives["twice"])

    async def history() -> None:
        served = ServedModel(settings)
        served.scale(1)
        try:
            waiting, either = asked("2", "waiting", Pieces()), asked("3", "either", Pieces(needed=False))
            outcome, answer = await asyncio.gather(served.answer(waiting), served.answer(either), return_exceptions=True)
            assert isinstance(outcome, Refused)
            assert (outcome.status, "application/json" in outcome.message) == (406, True)
            assert isinstance(answer, BackendAnswer)
            assert answer.body == b"6.0"
            with pytest.raises(Refused, match="comes whole"):
                await served.answer(asked("2", "later", Pieces()))
        finally:
            await served.close(5)
        assert served.ledger.open == 0

    asyncio.run(history())
