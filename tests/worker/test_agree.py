"""When two answers are the same: numbers within a tolerance, everything else exactly."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise.worker.agree import agree


@pytest.mark.parametrize(
    ("one", "other"),
    [
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
