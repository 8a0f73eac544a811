"""The slots' table, and tokens that are drawn."""

from __future__ import annotations

import random

import numpy as np
import pytest

from slotwise.worker.steps.sampling import greedy, sampled
from slotwise.worker.steps.slot_table import SlotTable


def test_memory_comes_back() -> None:
    now = 0.0
    table = SlotTable(8, lambda: now)
    assert [table.give() for _ in range(9)] == [*range(8), None]
    table.too_many(8)
    table.take_back(5)
    table.take_back(2)
    assert (table.give(), table.give()) == (2, None), "seven fit"
    now = 61.0
    assert (table.give(), table.most) == (5, 8)
    table.too_many(8)
    table.take_back(5)
    now = 61.0 + 119.0
    assert table.give() is None, "a trial that failed is not repeated soon"
    now = 61.0 + 121.0
    assert table.give() == 5
    with pytest.raises(KeyError):
        table.take_back(8)


def test_equal_seeds_draw_equal_tokens() -> None:
    logits = np.array([0.0, 3.0, 1.0, 3.0])
    assert greedy(logits) == 1
    for options in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.01}):
        assert sampled(logits, random.Random(1), **options) == 1  # type: ignore[arg-type]
    draws = [[sampled(logits, random.Random(seed), 0.7, top_k=3, top_p=0.9) for seed in range(200)] for _ in range(2)]
    assert draws[0] == draws[1]
    assert set(draws[0]) == {1, 3}
    many = [sampled(logits, draw) for draw in [random.Random(7)] for _ in range(4000)]
    shares = np.bincount(many, minlength=4) / 4000
    assert np.abs(shares - np.exp(logits) / np.exp(logits).sum()).max() < 0.03  # the seed is fixed


def test_a_temperature_near_zero_draws_the_likeliest_token() -> None:
    for temperature in (1e-3, 1e-300, 5e-324):
        assert {sampled(np.array([1.0, 9.0, 1e9, -5.0]), random.Random(seed), temperature) for seed in range(20)} == {2}


def test_an_engine_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="0 slots"):
        SlotTable(0)
