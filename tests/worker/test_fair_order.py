"""Whose turn it is: every owner once before any owner twice, whatever an author's `groups` does."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise.worker.batch import Row
from slotwise.worker.fair_order import divide, helpings, in_turn


def rows(owners: str) -> list[Row]:
    return [Row(int(owner), place) for place, owner in enumerate(owners)]


def places(some: list[Row]) -> list[Any]:
    return [row.item for row in some]


@pytest.mark.parametrize(
    ("owners", "order"),
    [
        ("", []),
        ("012", [0, 1, 2]),
        ("000", [0, 1, 2]),
        ("000112", [0, 3, 5, 1, 4, 2]),
        ("0120", [0, 1, 2, 3]),
        ("100", [0, 1, 2]),
    ],
)
def test_owners_take_turns(owners: str, order: list[int]) -> None:
    given = rows(owners)
    assert places(in_turn(given)) == order
    assert in_turn(given) is not given


@pytest.mark.parametrize(
    ("owners", "step", "sizes"),
    [
        ("", 1, []),
        ("0" * 9, 1, [9]),  # one owner waits for nobody
        ("01" * 2, 2, [4]),
        ("01" * 2 + "0", 2, [4, 1]),
        ("01" * 8, 1, [2, 4, 8, 2]),
        ("0123" * 3, 1, [4, 8]),
        ("0123" * 3, 3, [6, 6]),
        ("01" * 8, 8, [16]),
    ],
)
def test_helpings_double_and_the_first_has_a_row_of_everybody(owners: str, step: int, sizes: list[int]) -> None:
    given = rows(owners)
    helped = list(helpings(given, step))
    assert [len(helping) for helping in helped] == sizes
    assert places([row for helping in helped for row in helping]) == places(in_turn(given))
    if helped:
        assert {row.owner for row in helped[0]} == {row.owner for row in given}


def test_rows_are_grouped_as_the_author_says() -> None:
    given = rows("0112")
    assert divide(lambda some: [list(range(len(some)))], given) == ([given], [])
    groups, ungrouped = divide(lambda some: [[3, 0], [2, 1]], given)
    assert [places(group) for group in groups] == [[3, 0], [2, 1]]
    assert ungrouped == []


@pytest.mark.parametrize("bad", ["raises", "exits", "loses", "repeats", "names others", "is no list"])
def test_who_makes_groups_fail_is_the_only_one_ungrouped(bad: str) -> None:
    asked: list[list[int]] = []

    def groups(some: list[Row]) -> Any:
        asked.append(places(some))
        n = len(some)
        if all(row.owner != 1 for row in some):
            return [[i] for i in range(n)]
        if bad == "raises":
            raise ValueError
        if bad == "exits":
            raise SystemExit
        return {"loses": [list(range(n - 1))], "repeats": [[*range(n), 0]], "names others": [[n]], "is no list": [[1.0]]}[bad]

    together, ungrouped = divide(groups, rows("012101"))
    assert [places(group) for group in together] == [[0], [4], [2]]
    assert places(ungrouped) == [1, 3, 5]
    assert asked == [[0, 1, 2, 3, 4, 5], [0, 4], [1, 3, 5], [2]]


def test_the_operator_may_interrupt_groups() -> None:
    def groups(some: list[Row]) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        divide(groups, rows("01"))
