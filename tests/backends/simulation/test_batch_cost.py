"""What batches cost is learned, also from lying bodies, and forgotten."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.backends.local.batch_cost import ENOUGH, HALF_LIFE, BatchCost


@given(st.floats(0.0001, 2), st.floats(0.0001, 0.5), st.lists(st.integers(1, 64), min_size=40, max_size=80))
def test_a_line_is_found(each_s: float, request_s: float, sizes: list[int]) -> None:
    cost = BatchCost()
    for n in sizes:
        cost.learn(n, each_s + request_s * n)
    for n in sizes[-10:]:
        assert 0.5 * (each_s + request_s * n) <= cost.of(n) <= 2 * (each_s + request_s * n)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 1e6)), max_size=60))
def test_whatever_it_is_told_it_says_numbers(told: list[tuple[int, float]]) -> None:
    cost = BatchCost()
    for n, took_s in told:
        cost.learn(n, took_s)
        assert cost.each_s >= -1e-9 * cost.of(n)
        assert cost.request_s >= 0
        assert 0 <= cost.least(n) <= max(cost.of(n), 0.0)
        assert cost.known or cost.least(n) == 0


def learned(*, of: list[float], seed: int = 1) -> BatchCost:
    """From batches of 1 to 16 that take so many milliseconds, and a tenth of it a request."""
    chance, cost = random.Random(seed), BatchCost()
    for ms in of:
        n = chance.randint(1, 16)
        cost.learn(n, ms / 1000 * (1 + n / 10))
    return cost


def test_one_that_hangs_hardly_changes_it() -> None:
    before, after = learned(of=[10] * 100), learned(of=[10] * 100 + [60_000])
    assert after.of(8) < 1.2 * before.of(8)


def test_a_machine_with_half_its_cores_is_believed_within_a_half_life() -> None:
    cost = learned(of=[10] * 300 + [20] * 2 * HALF_LIFE)
    assert cost.of(8) == pytest.approx(0.036, rel=0.2)
    assert learned(of=[10] * 300 + [1000] * 4 * HALF_LIFE).of(8) == pytest.approx(1.8, rel=0.2)


def test_where_costs_are_all_over_the_place_nothing_is_said_of_the_least() -> None:
    assert learned(of=[1, 100] * 100).least(1) == 0


def test_of_one_size_only_half_is_taken_for_the_batch() -> None:
    cost = BatchCost()
    for _ in range(ENOUGH):
        cost.learn(8, 0.8)
    assert (cost.of(8), cost.of(4)) == (pytest.approx(0.8), pytest.approx(0.6))
