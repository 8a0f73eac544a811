"""Workers without frames for which something goes wrong that is no word of theirs: a process, a descriptor, a disk."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.archive import local_model
from slotwise.archive.local_model import LocalAnswer, LocalModel
from slotwise.archive.packaging import WORKER
from slotwise.backends.exchange import Refused
from slotwise.backends.local import piped_link
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.piped_link import PipedLink
from slotwise.backends.local.served_model import ServedModel
from slotwise.backends.local.worker_link import Measured
from tests.backends.test_served_model import asked, serving, settings
from tests.support.waiting import until_true

__all__ = ["settings"]  # the fixture


@pytest.fixture
def piped(settings: ModelSettings, tmp_path: Path) -> ModelSettings:
    """A model whose archive knows no frames, and does not start by itself."""
    folder = tmp_path / "old" / "slotwise" / "worker" / "hosts"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "local.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "old" / "slotwise.json").write_text(json.dumps({"worker": WORKER}))
    return replace(settings, model_dir=tmp_path / "old", start_timeout_s=20.0)


class NoProcess:
    """What a child is where there is none."""

    pid = 1

    def kill(self) -> None:
        """It has gone."""


@dataclass
class Answering:
    """A model that is loaded. answers(requests): what it does with a batch."""

    answers: Callable[[Sequence[Any]], list[LocalAnswer]]
    child: NoProcess = field(default_factory=NoProcess)
    started: dict[str, Any] = field(default_factory=lambda: {"engine": "none"})
    alive: bool = True

    def answer(self, requests: Sequence[Any]) -> list[LocalAnswer]:
        return self.answers(requests)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("error", [BlockingIOError(11, "none is to be had"), OSError(28, "none is to be had"), RuntimeError()])
def test_a_start_that_fails_in_whatever_way_is_tried_again(
    piped: ModelSettings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    starts: list[int] = []

    def start(*_: Any, **__: Any) -> Answering:
        starts.append(1)
        if len(starts) < 3:
            raise error
        return Answering(lambda requests: [LocalAnswer(200, "text/plain", {}, body) for body, *_ in requests])

    monkeypatch.setattr(piped_link, "PipedModel", start)

    async def history() -> None:
        async with serving(piped, 1) as served:
            await until_true(lambda: type(error).__name__ in served.failure)
            with pytest.raises(Refused, match="do not start"):
                await served.answer(asked("1"))
            await until_true(lambda: served.is_ready)
            assert (len(starts), served.ends["start"]) == (3, 2)
            assert (await served.answer(asked("1"))).body == b"1"

    asyncio.run(history())


def test_an_error_while_it_answers_ends_the_worker_and_the_others_go_on(
    piped: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(requests: Sequence[Any]) -> list[LocalAnswer]:
        if any(body == b"full" for body, *_ in requests):
            raise OSError(28, "No space left on device")
        return [LocalAnswer(200, "text/plain", {}, body) for body, *_ in requests]

    monkeypatch.setattr(piped_link, "PipedModel", lambda *_, **__: Answering(answers))

    async def history() -> None:
        async with serving(replace(piped, response_timeout_s=30.0), 1) as served:
            guilty, *innocents = (asked(body) for body in ("full", "1", "2"))
            async with asyncio.timeout(60):
                answers = await asyncio.gather(*map(served.answer, [guilty, *innocents]), return_exceptions=True)
            assert isinstance(answers[0], Refused)
            assert [getattr(answer, "body", answer) for answer in answers[1:]] == [b"1", b"2"]
            assert (guilty.convicted, served.ends["died"], served.ledger.open) == (1, 2, 0)

    asyncio.run(history())


def test_a_number_that_is_none_costs_nobody_an_answer(piped: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, measured: Measured, **__: Any) -> Answering:
        taking: Any = SimpleNamespace(measured=measured, unmeasured=False, archive=piped.archive)

        def answers(requests: Sequence[Any]) -> list[LocalAnswer]:
            LocalModel._measure(taking, [("of_handler", 1.0, "ms", None)])
            return [LocalAnswer(200, "text/plain", {}, body) for body, *_ in requests]

        return Answering(answers)

    def refuses(name: str, value: float, unit: str, code: int | None) -> None:
        raise ValueError("this is no number")

    monkeypatch.setattr(piped_link, "PipedModel", start)

    async def history() -> None:
        served = ServedModel(piped, refuses)
        served.scale(1)
        async with asyncio.timeout(60):
            assert (await served.answer(asked("1"))).body == b"1"
        await served.close(1)

    asyncio.run(history())


def test_one_that_still_starts_is_ended_with_its_model(piped: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_model, "extract", lambda archive, folder: piped.model_dir)

    async def history() -> None:
        served = ServedModel(replace(piped, start_timeout_s=600.0))
        served.scale(1)
        await until_true(lambda: served.links)
        (link,) = served.links
        assert isinstance(link, PipedLink)
        await until_true(lambda: link.starting)
        await served.close(0.1)
        assert link.starting is not None
        assert link.starting.wait(60) == -9

    began = time.monotonic()
    asyncio.run(history())  # which waits for its threads
    assert time.monotonic() - began < 300
