"""Isolation by itself, without a handler around it."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise.worker import ModelFault, OutOfMemory, Unavailable
from slotwise.worker.answer import Refusal
from slotwise.worker.batch import Row, Tally
from slotwise.worker.isolation import EngineDead, is_out_of_memory
from slotwise.worker.memory_ceiling import RETRY_AFTER_S
from slotwise.worker.padding import KINDS, Padding
from tests.worker.alone import Alone, Asked, echo, holds


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_run_runs_nothing(kind: str) -> None:
    def forbidden(items: list[Any], size: int) -> list[Any]:
        raise AssertionError("called")

    assert Alone(forbidden, Padding(kind, 8)).outputs([]) == []


def test_more_rows_than_the_ceiling_run_in_pieces() -> None:
    tally = Tally()
    assert Alone(echo, Padding("static", 4)).outputs(list(range(10)), tally=tally) == list(range(10))
    assert (tally.rows, tally.padding, tally.cuts) == (12, 2, 0)


def test_nothing_starts_after_stop_at() -> None:
    answers = Alone(echo, Padding("none", 4)).outputs([1, 2], stop_at=0.0)
    assert all(isinstance(answer, Unavailable) for answer in answers)


def test_a_dead_engine_is_told_from_a_bad_row_by_the_warm_up_input() -> None:
    def broken(items: list[Any], size: int) -> list[Any]:
        raise RuntimeError("gone")

    with pytest.raises(EngineDead):
        Alone(broken, Padding("none", 4), alive=lambda: False).outputs([1, 2, 3])
    assert [type(a) for a in Alone(broken, Padding("none", 4)).outputs([1, 2, 3])] == [ModelFault] * 3


def test_memory_that_never_suffices_ends_in_507_for_each_and_keeps_the_ceiling() -> None:
    released: list[int] = []

    def full(items: list[Any], size: int) -> list[Any]:
        raise MemoryError

    isolation = Alone(full, Padding("static", 8), release=lambda: released.append(1))
    assert [type(a) for a in isolation.outputs([1, 2, 3])] == [OutOfMemory] * 3
    assert isolation.ceiling.rows == 8
    assert released


def test_out_of_memory_is_known_by_type_name_or_message() -> None:
    class OutOfMemoryError(RuntimeError):
        """As torch names its own."""

    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(OutOfMemoryError("x"))
    assert is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))


def test_after_a_quiet_while_one_step_more_is_tried_and_given_up_at_once_if_it_fails() -> None:
    now, capacity, sizes = [0.0], [2], list[int]()

    def device(items: list[Any], size: int) -> list[Any]:
        sizes.append(size)
        if size > capacity[0]:
            raise MemoryError
        return list(items)

    isolation = Alone(device, Padding("static", 8), clock=lambda: now[0])
    isolation.outputs(list(range(8)))
    assert isolation.ceiling.rows == 2

    def ran() -> list[int]:
        sizes.clear()
        assert isolation.outputs(list(range(8))) == list(range(8))
        return list(sizes)

    assert set(ran()) == {2}, "not at once"
    now[0] += RETRY_AFTER_S
    assert ran()[0] == 4
    assert isolation.ceiling.rows == 2
    assert set(ran()) == {2}, "back at once"
    now[0] += RETRY_AFTER_S
    assert set(ran()) == {2}, "a trial that failed doubles the wait"
    capacity[0] = 8
    now[0] += RETRY_AFTER_S
    assert (set(ran()), isolation.ceiling.rows) == ({4}, 4)
    assert set(ran()) == {4}
    now[0] += 2 * RETRY_AFTER_S
    assert (set(ran()), isolation.ceiling.rows) == ({8}, 8)


def test_a_guilty_row_does_not_lower_the_ceiling() -> None:
    def device(items: list[Any], size: int) -> list[Any]:
        if size > 8:
            raise MemoryError
        if -1 in items:
            raise ValueError
        return list(items)

    isolation = Alone(device, Padding("bucketed", 16))
    isolation.outputs([-1, *range(8)])
    assert isolation.ceiling.rows == 8, "the pieces became smaller because of the guilty row, not because of memory"
    isolation.outputs([-1, *range(8)])
    assert isolation.ceiling.rows == 8


def test_a_trial_that_fails_leaves_the_ceiling_where_it_was() -> None:
    now, sizes = [0.0], []

    def device(items: list[Any], size: int) -> list[Any]:
        sizes.append(size)
        if size > 4:
            raise MemoryError
        return list(items)

    isolation = Alone(device, Padding("none", 8), clock=lambda: now[0])
    isolation.outputs(list(range(8)))
    now[0] += RETRY_AFTER_S
    isolation.outputs(list(range(7)))
    assert (max(sizes[-4:]), isolation.ceiling.rows) == (7, 4)


def test_a_warm_up_runs_every_size_as_often_as_it_is_told() -> None:
    for kind, sizes in (("none", [8, 1]), ("static", [8, 4, 2, 1]), ("fixed", [8])):
        isolation = Asked(echo, Padding(kind, 8))
        isolation.prepare(lambda: Row(0, "example"), 2)
        assert isolation.asked == [(["example"], size) for size in sizes for _ in range(2)]
        isolation.asked.clear()
        isolation.prepare(lambda: Row(0, "example"))
        assert isolation.asked == [(["example"], size) for size in sizes]
        isolation.asked.clear()
        isolation.prepare(lambda: None)
        assert isolation.asked == []


def test_a_warm_up_size_that_does_not_fit_lowers_the_ceiling() -> None:
    released: list[int] = []

    isolation = Asked(holds(2), Padding("static", 8), release=lambda: released.append(1))
    isolation.prepare(lambda: Row(0, 1))
    assert [size for _, size in isolation.asked] == [8, 4, 2, 1]
    assert (isolation.ceiling.rows, len(released)) == (2, 2)


@pytest.mark.parametrize(
    ("kind", "error", "fails_at", "asked"),
    [
        ("static", MemoryError(), 1, [8, 4, 2, 1]),
        ("static", ValueError("shape"), 4, [8, 4]),
        ("fixed", MemoryError(), 8, [8]),
    ],
)
def test_a_warm_up_that_fails_for_another_reason_ends_the_start(
    kind: str, error: Exception, fails_at: int, asked: list[int]
) -> None:
    def device(items: list[Any], size: int) -> list[Any]:
        if size == fails_at:
            raise error
        return list(items)

    isolation = Asked(device, Padding(kind, 8))
    with pytest.raises(type(error)):
        isolation.prepare(lambda: Row(0, 1))
    assert [size for _, size in isolation.asked] == asked


def test_a_warm_up_whose_output_is_refused_ends_the_start_and_says_why() -> None:
    isolation = Alone(lambda items, size: [Refusal.of(ModelFault("not finite"))], Padding("none", 8))
    with pytest.raises(ValueError, match=r"^the warm-up input fails: not finite$"):
        isolation.prepare(lambda: Row(0, 1))


def test_each_call_is_put_down_where_somebody_asks() -> None:
    def poisoned(items: list[Any], size: int) -> list[Any]:
        if 2 in items:
            raise ValueError("on purpose")
        return items

    isolation = Alone(poisoned, Padding("static", 4))
    isolation.outputs([0, 1, 2, 3])
    assert isolation.calls is None
    isolation.calls = []
    isolation.outputs([0, 1, 2, 3])
    told = [(call.owners, call.size, type(call.error)) for call in isolation.calls]
    assert told[0] == ([0, 1, 2, 3], 4, ValueError)
    assert ([2], 4, ValueError) in told
    assert sorted(owner for owners, _, error in told if error is type(None) for owner in owners) == [0, 1, 3]
    assert all(call.took_s >= 0 for call in isolation.calls)
