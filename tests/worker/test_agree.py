"""When two answers are the same: numbers within a tolerance, everything else exactly."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from slotwise.worker.separability.agree import agree

HUGE = 10**900  # JSON has such numbers, and a float has not
DEEP: list[Any] = functools.reduce(lambda inner, _: [inner], range(5000), [])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([HUGE], [HUGE]),
        ([HUGE], [HUGE + 1]),
        ({"box": [100, 201]}, {"box": [101, 200]}),  # rounded
        (math.nan, math.nan),
        ([math.inf, 1.0], [math.inf, 1.001]),
        (DEEP, [DEEP[0]]),
        ({"a": HUGE, "b": 0.1}, {"a": HUGE, "c": 0.105}),
        ({"label": "a", "probabilities": {"a": HUGE, "b": HUGE}}, {"label": "b", "probabilities": {"a": HUGE, "b": HUGE}}),
        ({"label": ["a"], "probabilities": {"a": 1.0}}, {"label": ["a"], "probabilities": {"a": 1.0}}),
        ({"label": "a", "probabilities": {"a": "?"}}, {"label": "a", "probabilities": {"a": "?"}}),
        (1, 1.01),
        (100.0, 101.5),
        (None, None),
        ([1.0, "a"], [1.001, "a"]),
        ({"x": 0.5, "y": [True]}, {"x": 0.51, "y": [True]}),
        ({"a": 0.4, "b": 0.1}, {"a": 0.4, "c": 0.105}),  # the last of two top-k lists is another by a hair
        ({"label": "a", "probabilities": {"a": 0.5, "b": 0.49}}, {"label": "b", "probabilities": {"a": 0.49, "b": 0.5}}),
    ],
)
def test_what_is_the_same(one: Any, other: Any) -> None:
    assert agree(one, other)
    assert agree(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.5),
        ([HUGE], [1.5]),
        ([HUGE], [HUGE + HUGE // 100]),
        ({"class": 401}, {"class": 403}),
        ({"id": 1234567}, {"id": 1234569}),
        ([HUGE], [2 * HUGE]),
        ([HUGE], ["a"]),
        ([HUGE], [math.inf]),
        (math.inf, 1.0),
        (math.inf, -math.inf),
        (math.nan, 1.0),
        (DEEP, DEEP[0]),
        ({"a": 0.4, "b": True}, {"a": 0.4, "c": True}),
        ({"a": HUGE, "b": 0.1}, {"a": HUGE, "c": math.inf}),
        ({"label": ["a"], "probabilities": {"a": 1.0}}, {"label": ["b"], "probabilities": {"a": 1.0}}),
        ({"label": "a", "probabilities": {"a": "?"}}, {"label": "b", "probabilities": {"a": "?"}}),
        ({"label": "a", "probabilities": {"a": HUGE, "b": 1}}, {"label": "b", "probabilities": {"a": 1, "b": HUGE}}),
        (True, 1),
        (None, 0),
        ("a", "b"),
        ([1.0], [1.0, 2.0]),
        ({"x": 1}, {"x": 1, "y": 1}),
        ({"a": 0.4, "b": 0.3}, {"a": 0.4, "c": 0.1}),
        ({"a": "x", "b": "y"}, {"a": "x", "c": "y"}),
        ({"label": "a", "probabilities": {"a": 0.9, "b": 0.1}}, {"label": "b", "probabilities": {"a": 0.1, "b": 0.9}}),
        ({"label": "a", "probabilities": {"a": 0.9, "b": 0.1}}, {"label": "a", "probabilities": {"a": 0.6, "b": 0.4}}),
    ],
)
def test_what_is_not(one: Any, other: Any) -> None:
    assert not agree(one, other)
    assert not agree(other, one)
