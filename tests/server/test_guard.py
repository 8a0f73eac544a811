"""Strangers' archives behind a guard, on real servers: whoever is bad in a batch of 8, the others get what they get alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from tests.server import guarded_models
from tests.server.bursts import ask, burst
from tests.server.conftest import Live, needs_a_servers_context
from tests.server.guarded_models import GATHERED, Guarded, innocents_lost, shares

pytestmark = pytest.mark.server

QUICK = [guarded_models.FUNCTION, guarded_models.ODD]
SLOW = [guarded_models.BASE_LIST, guarded_models.BASE_TENSOR, guarded_models.CLASSIFIER, guarded_models.TEXTS]
LONG = [guarded_models.SEGMENTER, guarded_models.DETECTOR]  # whole networks of torchvision
SHIFTS = Guarded("shifts", guarded_models.handler("shifts"), [], [])
RARELY = [*((one, pytest.mark.slow) for one in SLOW), *((one, pytest.mark.long) for one in LONG)]


def named(models: list[Guarded]) -> dict[str, object]:
    return {"argvalues": models, "ids": [model.name for model in models]}


def tried(live: Live, model: Guarded, store: Path, tmp_path: Path, shared: Sequence[set[int]]) -> None:
    """Bad bodies among eight, in these places; and every answer audited."""
    if live.record.kind not in model.servers:
        pytest.skip(f"{model.name} is a handler of TorchServe")
    model.register(live, store, tmp_path)
    try:
        alone = [ask(live.inference, model.name, body) for body in model.good]
        assert {answer.status for answer in alone} <= {200, 201}, alone
        pids = live.pids(model.name)
        wrong = {turn: lost for turn, places in enumerate(shared) if (lost := innocents_lost(live, model, alone, places, turn))}
        assert wrong == {}
        assert live.pids(model.name) == pids, "a worker has ended"
        if live.record.kind == "torchserve":  # MMS has no metrics to ask for
            good = len(alone) + sum(8 - len(places) for places in shared)
            total, mismatches = audited(live, model.name, good)
            assert (total >= good, mismatches) == (True, 0)
    finally:
        live.management.unregister(model.name)


@pytest.mark.parametrize("model", **named(QUICK))
def test_nobody_pays_for_a_bad_request_of_another(live: Live, model: Guarded, store: Path, tmp_path: Path) -> None:
    tried(live, model, store, tmp_path, shares())


def test_nor_with_a_stock_image_classifier(live: Live, store: Path, tmp_path: Path) -> None:
    tried(live, guarded_models.CLASSIFIER, store, tmp_path, [{0}, {5}, {1, 2, 6}])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", [pytest.param(one, id=one.name, marks=mark) for one, mark in RARELY])
def test_nor_with_any_default_handler(live: Live, model: Guarded, store: Path, tmp_path: Path) -> None:
    tried(live, model, store, tmp_path, shares())


def test_without_a_guard_they_do(live: Live, store: Path, tmp_path: Path) -> None:
    """The same eight requests share a batch, or the tests above would show nothing."""
    needs_a_servers_context(live)
    guarded_models.FUNCTION.archive(tmp_path / "stock").rename(store / "theirs.mar")
    with live.registered("theirs", **GATHERED):
        deadline = time.monotonic() + 60
        lost = 0
        while not lost and time.monotonic() < deadline:
            answers = burst(live.inference, "theirs", [b"no", *guarded_models.FUNCTION.good[1:]], gap_s=0.0)
            lost = sum(answer.status != 200 for answer in answers[1:])
        assert lost


def test_the_audit_finds_what_is_kept_from_one_request_to_the_next(live: Live, store: Path, tmp_path: Path) -> None:
    if live.record.kind == "mms":
        pytest.skip("MMS has no metrics to ask for")
    SHIFTS.register(live, store, tmp_path)
    try:
        kept = [ask(live.inference, "shifts", b"keep").status for _ in range(2)]
        assert (kept, audited(live, "shifts", 2)) == ([200, 200], (2, 2))
    finally:
        live.management.unregister("shifts")


def test_who_puts_answers_into_wrong_slots_gives_nobody_anothers(live: Live, store: Path, tmp_path: Path) -> None:
    """Nothing is proven of it: its first batches' requests are asked again, alone."""
    SHIFTS.register(live, store, tmp_path)
    bodies = [b"1", b" ", b"3", b"4", b"5", b"6", b"7", b"8"]
    try:
        for _ in range(4):
            answers = burst(live.inference, "shifts", bodies, gap_s=0.0)
            assert [answer.body["doubled"] for answer in answers] == [
                2 * int(body) if body.strip() else None for body in bodies
            ]
    finally:
        live.management.unregister("shifts")


def audited(live: Live, model: str, answers: int) -> tuple[int, int]:
    """How many answers of a model TorchServe says were audited, once there are so many, and how many of them mismatched."""
    names, deadline = ("slotwise_audit_total", "slotwise_audit_mismatch_total"), time.monotonic() + 60
    while True:
        text = httpx.get(f"{live.record.metrics_url}/metrics", timeout=30).text
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if f'ModelName="{model}"' in line]
        total, mismatches = (sum(int(float(value)) for name, value in lines if name.startswith(f"{one}{{")) for one in names)
        if total >= answers or time.monotonic() > deadline:
            return total, mismatches
        time.sleep(0.1)
