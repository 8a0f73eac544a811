"""The same calls to a real TorchServe and to ours: every answer is the same, or there is a reason on the page."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.drop_in.calls import CALLS, CLOSED, Call
from tests.drop_in.reasons import AS_BY_HTTP, BY_GRPC, MOOT, REASONS, Reason, reason_for
from tests.drop_in.side_by_side import Side, differences
from tests.drop_in.stores import plain_store
from tests.server import grpc_calls
from tests.server.conftest import build_handler
from tests.support.certificates import certificate
from tests.support.deployments import OURS, TORCHSERVE, deployed
from tests.support.torchserve_client import client_of

PAGE = Path(__file__).parents[2] / "docs" / "torchserve-differences.md"
LINES = ("default_workers_per_model=1", "metrics_mode=prometheus")
OPTIONS = ("--ncs", "--enable-model-api", "--models", "echo.mar,headers.mar,errors.mar")


@contextmanager
def sides(place: Path, lines: Sequence[str], options: Sequence[str], scheme: str = "http") -> Iterator[tuple[Side, Side]]:
    """TorchServe, and ours, with a store of its own each."""
    theirs, ours = plain_store(place / "theirs"), place / "ours"
    shutil.copytree(theirs, ours)
    with (
        deployed(TORCHSERVE, place / "a", theirs, lines, options, scheme=scheme) as one,
        deployed(OURS, place / "b", ours, lines, options, scheme=scheme) as other,
    ):
        for deployment in (one, other):
            for model in ("echo", "headers", "errors"):
                deployment.wait_ready(model)
        yield Side(one), Side(other)


def differing(calls: Iterable[Call], theirs: Side, ours: Side) -> dict[str, str]:
    """The calls that are answered otherwise, and how. Raises AssertionError for those without a reason."""
    with ThreadPoolExecutor(2) as both:
        found = {str(call): difference for call in calls if (difference := differences(call, theirs, ours, both))}
    unexplained = [f"{call}\n    {difference}" for call, difference in found.items() if reason_for(call) is None]
    assert not unexplained, "\n".join(unexplained)
    for call, difference in found.items():
        promised = re.findall(r"\b[2-5]\d\d\b", reason_for(call).ours)
        assert not promised or difference.rpartition(", ours ")[2][:3] in promised, f"{call}\n    {difference}"
    return found


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_call_is_answered_as_there_or_for_a_reason(tmp_path: Path) -> None:
    with sides(tmp_path, LINES, OPTIONS) as both:
        used = {reason_for(call) for call in differing(CALLS, *both)}
    assert [one.calls for one in REASONS if one not in used] == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_also_over_tls_and_where_models_cannot_be_registered(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    lines = (*LINES, f"certificate_file={cert}", f"private_key_file={key}")
    with sides(tmp_path, lines, [option for option in OPTIONS if option != "--enable-model-api"], "https") as both:
        differing(CLOSED, *both)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_also_by_grpc_over_tls(tmp_path: Path) -> None:
    for name, version in (("faults", "1.0"), ("faults", "2.0"), ("spare", "1.0")):
        build_handler(name, tmp_path / "store", tmp_path / "models", version=version)
    cert, key = certificate(tmp_path)
    lines = ("enable_grpc_ssl=true", f"certificate_file={cert}", f"private_key_file={key}")
    with (
        deployed(TORCHSERVE, tmp_path / "a", tmp_path / "store", lines) as one,
        deployed(OURS, tmp_path / "b", tmp_path / "store", lines) as other,
        client_of(one.ports, one.folder, cert) as theirs,
        client_of(other.ports, other.folder, cert) as ours,
    ):
        assert grpc_calls.unexpected(theirs, ours, MOOT) == []


def row(one: Reason) -> str:
    return f"| {one.calls} | {one.theirs} | {one.ours} | {one.why}{' (refused for security)' if one.refused else ''} |"


@pytest.mark.parametrize("one", REASONS, ids=lambda one: one.calls)
def test_the_page_has_every_reason(one: Reason) -> None:
    assert row(one) in PAGE.read_text("utf-8")


def test_the_page_has_every_reason_by_grpc() -> None:
    page = PAGE.read_text("utf-8")
    assert set(grpc_calls.REASONS) == set(BY_GRPC) | AS_BY_HTTP | MOOT
    assert [why for why, cells in BY_GRPC.items() if f"| {' | '.join(cells)} | {why} |" not in page] == []


def test_hundreds_of_calls_are_compared_and_at_most_fifteen_kinds_differ() -> None:
    """The page says the numbers."""
    assert len(set(map(str, CALLS))) == len(CALLS)
    http, tls, grpc = len(CALLS), len(CLOSED), len(grpc_calls.CALLS)
    kinds = sum(not one.refused for one in REASONS) + len(BY_GRPC)
    text = f"compares {http + tls + grpc} calls: {http} by HTTP, {tls} of them again over TLS, {grpc} by gRPC over TLS"
    page = " ".join(PAGE.read_text("utf-8").split())
    assert text in page
    assert f"{kinds} kinds of answers differ" in page
    assert http + tls + grpc >= 500
    assert kinds <= 15
