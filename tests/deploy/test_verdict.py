"""When a new archive counts as worse: outside the 95% interval of paired windows, with enough requests of both."""

from __future__ import annotations

import random

from slotwise.deploy.verdict import verdict


def windows(
    count: int, old: tuple[float, float], new: tuple[float, float], requests: int = 50
) -> list[dict[str, dict[str, float]]]:
    """Windows in which a share of the requests fails and the p99 is about so many milliseconds; disturbances hit both."""
    draw = random.Random(1)
    found = []
    for _ in range(count):
        disturbed = draw.choice([1.0, 1.0, 3.0])
        sides = {}
        for name, (share, p99_ms) in (("old", old), ("new", new)):
            errors = sum(draw.random() < share for _ in range(requests))
            sides[name] = {"requests": requests, "errors": errors, "p99_ms": p99_ms * disturbed * draw.uniform(0.95, 1.05)}
        found.append(sides)
    return found


def test_the_same_archive_is_not_worse() -> None:
    assert verdict(windows(10, (0.0, 10.0), (0.0, 10.0))).worse == ""
    assert verdict(windows(10, (0.1, 10.0), (0.1, 10.0))).worse == ""
    assert verdict(windows(10, (0.0, 10.0), (0.0, 10.5))).worse == ""


def test_errors_and_slowness_are_said_with_their_figures() -> None:
    assert (
        "of its requests fail, 0.0% of the old one's (500 and 500 requests)" in verdict(windows(10, (0, 10), (0.2, 10))).worse
    )
    assert verdict(windows(10, (0.0, 10.0), (0.0, 15.0))).worse.startswith("its p99 is ")
    assert verdict(windows(10, (0.2, 10.0), (0.0, 5.0))).worse == ""


def test_nothing_is_said_before_there_are_200_requests_of_both() -> None:
    assert not verdict([]).enough
    assert not verdict(windows(10, (0.0, 10.0), (1.0, 10.0), requests=19)).enough
    assert not verdict(windows(4, (0.0, 10.0), (1.0, 10.0), requests=100)).enough
    assert verdict(windows(10, (0.0, 10.0), (1.0, 10.0), requests=20)).worse
