"""What a batch may cost: its quarters of the timeout, and whom its budget lets in."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise.worker.budget import DECODE_MEMORY_BYTES, Budget, Cost, so_far, total


def budget(n: int = 4, timeout_s: float = 8.0, decode_ms: float = 100.0, threads: int = 1, now: float = 1000.0) -> Budget:
    return Budget(n, timeout_s, decode_ms, threads, clock=lambda: now)


def test_what_one_owner_asks_for_counts_together() -> None:
    costs = [Cost(20, 1)] * 6 + [Cost(30, 1), Cost(30, 1)]
    assert budget().admit(costs) == [True] * 5 + [False] * 3, "each an owner of its own"
    assert budget().admit(costs, [0] * 6 + [1, 2]) == [True] * 2 + [False] * 4 + [True, True]
    assert so_far([3, 1, 2, 5], [0, 0, 1, 1]) == [4, 1, 2, 7]


def test_the_timeout_is_cut_into_quarters_that_are_over_when_they_end() -> None:
    now = [1000.0]
    one = Budget(4, 8.0, 100.0, clock=lambda: now[0])
    assert (one.started, one.decode_until, one.predict_until, one.encode_until) == (1000.0, 1002.0, 1004.0, 1006.0)
    assert (one.decode_share_s, one.threads) == (0.5, 1)
    assert budget(0).decode_share_s == budget(1).decode_share_s == 2.0
    assert budget(threads=0).threads == 1
    for moment, over in ((1001.9, False), (1002.0, True), (1002.1, True)):
        now[0] = moment
        assert one.over(one.decode_until) is over


def test_the_cheapest_are_let_in_first_until_the_budget_is_spent() -> None:
    costs = [Cost(60, 1), Cost(30, 1), None, Cost(30, 1), Cost(40, 1), Cost(40, 1)]
    assert budget().admit(costs) == [False, True, True, True, True, False]
    assert budget(threads=2).admit(costs) == [True] * 6
    assert budget(threads=3).admit([Cost(100, 1), Cost(101, 1), Cost(100, 1)]) == [True, False, True]
    assert budget().admit([Cost(100, 1), Cost(0, 1), Cost(101, 1)]) == [True, True, False]
    assert budget().admit([]) == []


def test_what_is_refused_costs_nobody_else() -> None:
    assert budget().admit([Cost(10, DECODE_MEMORY_BYTES + 1), Cost(100, 1)]) == [False, True]
    assert budget().admit([Cost(10, DECODE_MEMORY_BYTES), Cost(95, 1)]) == [True, False]


def test_a_body_is_heavy_where_a_thread_has_less_than_it_needs() -> None:
    assert not budget().heavy(None)
    assert not budget().heavy(Cost(1, DECODE_MEMORY_BYTES))
    assert budget().heavy(Cost(1, DECODE_MEMORY_BYTES + 1))
    assert not budget(threads=4).heavy(Cost(1, DECODE_MEMORY_BYTES // 4))
    assert budget(threads=4).heavy(Cost(1, DECODE_MEMORY_BYTES // 4 + 1))


@pytest.mark.parametrize(
    ("costs", "cost"),
    [
        ([], None),
        ([Cost(1, 7), Cost(2, 5)], Cost(3, 7)),
        ([Cost(0, 0)], Cost(0, 0)),
        ([None, "dear", Cost(1, 7), 9], Cost(1, 7)),
        ([Cost(-1, 7)], None),
        ([Cost(1, -7)], None),
        ([Cost(float("nan"), 7)], None),
        ([Cost(1, float("inf"))], None),  # type: ignore[arg-type]
        ([Cost("1", 7)], None),  # type: ignore[arg-type]
        ([Cost(1, 7), Cost(1, None)], Cost(1, 7)),  # type: ignore[arg-type]
    ],
)
def test_costs_add_up_in_time_and_the_largest_counts_in_memory(costs: list[Any], cost: Cost | None) -> None:
    assert total(costs) == cost
