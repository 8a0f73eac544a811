"""The same calls to a real TorchServe and to ours: every answer is the same, or there is a reason on the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.drop_in.calls import CALLS
from tests.drop_in.reasons import REASONS, Reason, reason_for
from tests.drop_in.side_by_side import Side, differences
from tests.drop_in.stores import plain_store
from tests.support.deployments import OURS, TORCHSERVE, deployed

PAGE = Path(__file__).parents[2] / "docs" / "leaving-torchserve.md"
LINES = ("default_workers_per_model=1", "metrics_mode=prometheus")
OPTIONS = ("--ncs", "--enable-model-api", "--models", "echo.mar,headers.mar,errors.mar")


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """TorchServe, and ours, with a store of its own each."""
    place = tmp_path_factory.mktemp("s")
    theirs, ours = plain_store(place / "theirs"), place / "ours"
    shutil.copytree(theirs, ours)
    with (
        deployed(TORCHSERVE, place / "a", theirs, LINES, OPTIONS) as one,
        deployed(OURS, place / "b", ours, LINES, OPTIONS) as other,
    ):
        for deployment in (one, other):
            for model in ("echo", "headers", "errors"):
                deployment.wait_ready(model)
        yield Side(one), Side(other)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_call_is_answered_as_there_or_for_a_reason(sides: tuple[Side, Side]) -> None:
    found = {}
    with ThreadPoolExecutor(2) as both:
        for call in CALLS:
            if difference := differences(call, *sides, both):
                found[str(call)] = difference
    unexplained = {call: difference for call, difference in found.items() if reason_for(call) is None}
    assert not unexplained, "\n".join(f"{call}\n    {difference}" for call, difference in unexplained.items())
    used = {reason_for(call) for call in found}
    assert [one.calls for one in REASONS if one not in used] == []


def row(one: Reason) -> str:
    return f"| {one.calls} | {one.theirs} | {one.ours} | {one.why}{' (refused for security)' if one.refused else ''} |"


@pytest.mark.parametrize("one", REASONS, ids=lambda one: one.calls)
def test_the_page_has_every_reason(one: Reason) -> None:
    assert row(one) in PAGE.read_text("utf-8")


def test_there_are_at_most_fifteen_others() -> None:
    assert sum(not one.refused for one in REASONS) <= 15


def test_there_are_hundreds_of_calls() -> None:
    assert f"sends {len(CALLS)} calls" in PAGE.read_text("utf-8")
    assert len({str(call) for call in CALLS}) == len(CALLS) > 250
