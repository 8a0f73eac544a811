"""A handler that uses TorchServe's MicroBatching: its threads outlive what its steps raise."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ts.handler_utils import micro_batching as torchserves

from slotwise.worker.guard import foreign_handler as theirs
from slotwise.worker.guard import micro_batching
from tests.worker.strangers import ask, context, guard


class Steps:
    """As TorchServe's example for MicroBatching has it."""

    def __init__(self) -> None:
        self.handle = torchserves.MicroBatching(self, micro_batch_size=2, parallelism={"preprocess": 2})

    def initialize(self, context: Any) -> None:
        self.context = context

    def _is_describe(self) -> bool:
        return False

    def _is_explain(self) -> bool:
        return False

    def preprocess(self, data: Any) -> Any:
        return [json.loads(row["body"]) for row in data]

    def inference(self, numbers: Any) -> Any:
        if 13 in numbers:
            raise RuntimeError
        return [2 * number for number in numbers]

    def postprocess(self, numbers: Any) -> Any:
        return [str(number) for number in numbers][numbers == [14, 16] :]


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """What answers a batch, found as in an archive."""
    for name in ("execute_call", "MicroBatching"):
        monkeypatch.setattr(torchserves, name, getattr(torchserves, name))
    monkeypatch.setattr(torchserves.MicroBatching, "handle", torchserves.MicroBatching.handle)
    module = types.ModuleType("steps")
    module.Steps = type("Steps", (Steps,), {"__module__": "steps"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "steps", module)
    found = theirs.start("steps.py", context("torchserve", []), "torchserve")
    yield found
    found.shutdown()


@pytest.mark.timeout(60)
def test_a_step_that_raises_costs_its_sender_and_no_later_batch(handle: Any) -> None:
    guarded = guard(handle)
    for _ in range(2):
        slots = ask(guarded, [b"1", b"2", b"no", b"4", b"13", b"6", b"3"])
        assert [slot.status for slot in slots] == [200, 200, 400, 200, 500, 200, 200]
        assert [slot.body for slot in slots if slot.status == 200] == [b"2", b"4", b"8", b"12", b"6"]


@pytest.mark.timeout(60)
def test_a_part_with_too_few_answers_moves_nobodys(handle: Any) -> None:
    assert [slot.body for slot in ask(guard(handle), [b"7", b"8", b"1"])] == [b"14", b"16", b"2"]


class Keeps(Steps):
    """What one step leaves on `self` is for another one."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def preprocess(self, data: Any) -> Any:
        self.sent += [row["body"] for row in data]
        return super().preprocess(data)

    def postprocess(self, numbers: Any) -> Any:
        sent, self.sent = self.sent, []
        return [f"{number} of {body.decode()}" for number, body in zip(numbers, sent, strict=False)]


@pytest.mark.timeout(60)
def test_what_the_steps_of_a_batch_that_failed_have_left_is_in_nobodys_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("execute_call", "MicroBatching"):
        monkeypatch.setattr(torchserves, name, getattr(torchserves, name))
    monkeypatch.setattr(torchserves.MicroBatching, "handle", torchserves.MicroBatching.handle)
    micro_batching.install()
    keeps = Keeps()
    try:
        assert [slot.body for slot in ask(guard(keeps.handle), [b"13", b"2"])[1:]] == [b"4 of 2"]
        assert keeps.sent == []
    finally:
        keeps.handle.shutdown()


class Called:
    """A handler that is an object which can be called."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def __call__(self, data: Any, context: Any) -> Any:
        self.sent += [row["body"] for row in data]
        answers = [json.loads(row["body"]) for row in data]
        sent, self.sent = self.sent, []
        return [f"{answer} of {body.decode()}" for answer, body in zip(answers, sent, strict=False)]


def test_what_an_object_that_is_called_has_left_is_in_nobodys_answer() -> None:
    assert [slot.body for slot in ask(guard(Called()), [b"no", b"2"])[1:]] == [b"2 of 2"]


def test_a_micro_batching_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchserves, "HANDLER_METHODS", ["one", "two"])
    micro_batching.install()
    entry = torchserves.MicroBatching.__new__(torchserves.MicroBatching)
    entry.thread_groups = {}
    with pytest.raises(ValueError, match="not known to the guard"):
        micro_batching.need_installed(entry)
