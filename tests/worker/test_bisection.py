"""Which rows the model is asked for, in which order, and who is to blame where it fails."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise.worker import BadRequest, ModelFault, OutOfMemory, Unavailable
from slotwise.worker.answer import Refusal
from slotwise.worker.batch import MOST_GUILTY, NOT_RUN, TOO_MANY_GUILTY, Row, Tally
from slotwise.worker.isolation import EngineDead, is_out_of_memory
from slotwise.worker.padding import Padding
from tests.worker.alone import Alone, Asked, echo, fails_on, holds


def test_pieces_run_in_the_order_of_their_rows() -> None:
    isolation = Asked(echo, Padding("bucketed", 4))
    assert isolation.outputs(list(range(10))) == list(range(10))
    assert isolation.asked == [([0, 1, 2, 3], 4), ([4, 5, 6, 7], 4), ([8, 9], 2)]


def test_halves_are_asked_first_to_last_and_a_half_that_must_be_guilty_not_as_a_whole() -> None:
    isolation, tally = Asked(fails_on(6), Padding("bucketed", 8)), Tally()
    outputs = isolation.outputs(list(range(8)), tally=tally)
    assert outputs[:6] + outputs[7:] == [0, 1, 2, 3, 4, 5, 7]
    assert (type(outputs[6]), outputs[6].message) == (ModelFault, "the model failed on this input")
    assert isolation.asked == [([*range(8)], 8), ([0, 1, 2, 3], 4), ([4, 5], 2), ([6], 1), ([7], 1)]
    assert (tally.rows, tally.padding, tally.cuts, tally.guilty) == (16, 0, 3, {6: 1})


def test_a_row_that_must_be_guilty_is_asked_once_and_not_cut() -> None:
    isolation, tally = Asked(fails_on(7), Padding("none", 8)), Tally()
    isolation.outputs(list(range(8)), tally=tally)
    assert [items for items, _ in isolation.asked] == [[*range(8)], [0, 1, 2, 3], [4, 5], [6], [7]]
    assert (tally.cuts, tally.guilty) == (3, {7: 1})


def test_an_odd_group_is_cut_with_the_larger_half_first() -> None:
    isolation = Asked(fails_on(0), Padding("none", 8))
    isolation.outputs([0, 1, 2, 3, 4])
    assert [items for items, _ in isolation.asked] == [[0, 1, 2, 3, 4], [0, 1, 2], [0, 1], [0], [1], [2], [3, 4]]


def test_owners_are_told_apart_before_rows() -> None:
    isolation, tally = Asked(fails_on(5), Padding("none", 8)), Tally()
    rows = [Row(owner, item) for item, owner in enumerate([0, 1, 2, 0, 1, 2, 2])]
    isolation.run(rows, tally=tally)
    assert [items for items, _ in isolation.asked] == [[*range(7)], [0, 3, 1, 4], [2, 5], [2], [5], [6]]
    assert [row.item for row in rows if row.error is not None] == [5]
    assert tally.guilty == {2: 1}


def test_who_leaves_is_asked_for_no_more_and_everybody_else_is_isolated_as_ever() -> None:
    gone: set[int] = set()

    def model(items: list[int], size: int) -> list[int]:
        gone.add(1)  # during the first call
        return fails_on(3)(items, size)

    isolation = Asked(model, Padding("none", 8))
    rows = [Row(owner, owner) for owner in range(4)]
    isolation.run(rows, gone=lambda: gone)
    assert [items for items, _ in isolation.asked] == [[0, 1, 2, 3], [0], [2], [3]]
    assert [row.error.status if row.error else row.output for row in rows] == [0, 504, 2, 500]


def test_out_of_memory_runs_smaller_pieces_and_convicts_nobody_for_it() -> None:
    released: list[int] = []

    isolation, tally = Asked(holds(2), Padding("static", 8), release=lambda: released.append(1)), Tally()
    assert isolation.outputs(list(range(5)), tally=tally) == list(range(5))
    assert isolation.asked == [([*range(5)], 8), ([0, 1, 2, 3], 4), ([0, 1], 2), ([2, 3], 2), ([4], 4), ([4], 2)]
    assert (tally.rows, tally.padding, tally.cuts, tally.guilty, len(released)) == (22, 7, 3, {}, 3)
    assert isolation.ceiling.rows == 2


def test_a_row_that_does_not_fit_alone_is_507_by_name() -> None:
    def device(items: list[Any], size: int) -> list[Any]:
        if "huge" in items:
            raise MemoryError
        return list(items)

    isolation, tally = Asked(device, Padding("bucketed", 4)), Tally()
    one, huge, two = isolation.outputs(["one", "huge", "two"], tally=tally)
    assert (one, two, type(huge), tally.guilty) == ("one", "two", OutOfMemory, {1: 1})
    assert huge.message == "this input alone does not fit into the memory of the model's device"
    assert isolation.ceiling.rows == 4


def test_where_fewer_rows_take_no_less_memory_the_group_is_halved() -> None:
    def device(items: list[Any], size: int) -> list[Any]:
        if 3 in items:
            raise MemoryError
        return list(items)

    isolation = Asked(device, Padding("fixed", 4))
    outputs = isolation.outputs([0, 1, 2, 3])
    assert (outputs[:3], type(outputs[3])) == ([0, 1, 2], OutOfMemory)
    assert isolation.asked == [([0, 1, 2, 3], 4), ([0, 1], 4), ([2], 4), ([3], 4)]
    assert isolation.ceiling.rows == 4


def test_an_error_that_says_what_the_client_is_told_keeps_its_words() -> None:
    def model(items: list[Any], size: int) -> list[Any]:
        raise BadRequest("mine")

    (error,) = Alone(model, Padding("none", 4)).outputs([1])
    assert (type(error), error.message) == (BadRequest, "mine")


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit()])
def test_an_authors_exit_is_a_failure_like_any_other(error: BaseException) -> None:
    def model(items: list[Any], size: int) -> list[Any]:
        raise error

    assert [type(a) for a in Alone(model, Padding("none", 4)).outputs([1, 2])] == [ModelFault] * 2


def test_the_operator_may_interrupt_the_model() -> None:
    def model(items: list[Any], size: int) -> list[Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Alone(model, Padding("none", 4)).outputs([1])


def test_an_error_without_a_text_is_no_lack_of_memory() -> None:
    class Dumb(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert is_out_of_memory(Dumb()) is False
    assert is_out_of_memory(RuntimeError("OUT OF MEMORY"))
    assert is_out_of_memory(type("MemoryError", (RuntimeError,), {})())


def test_whether_the_engine_lives_is_asked_at_the_first_failure_only() -> None:
    looks: list[int] = []

    def alive() -> bool:
        looks.append(1)
        return True

    isolation = Asked(fails_on(1, 6), Padding("none", 8), alive=alive)
    isolation.outputs(list(range(8)))
    assert len(looks) == 1, "rows ran after the last that failed"
    looks.clear()
    isolation = Asked(fails_on(6, 7), Padding("none", 8), alive=alive)
    isolation.outputs(list(range(8)))
    assert len(looks) == 2, "and at the end, where nothing ran after the last that failed"
    looks.clear()
    isolation = Asked(fails_on(0), Padding("none", 8), alive=alive)
    isolation.outputs([0])
    assert len(looks) == 1, "it lived when the one row had failed"


def test_several_rows_that_do_not_fit_say_nothing_of_the_engine() -> None:
    looks: list[int] = []

    def alive() -> bool:
        looks.append(1)
        return True

    assert Alone(holds(2), Padding("none", 8), alive=alive).outputs([1, 2, 3, 4]) == [1, 2, 3, 4]
    assert not looks


def test_a_device_that_frees_nothing_is_asked_whether_it_lives_each_time() -> None:
    looks: list[int] = []

    def alive() -> bool:
        looks.append(1)
        return True

    def stuck() -> None:
        raise RuntimeError("device-side assert")

    Alone(fails_on(0), Padding("none", 8), alive=alive, release=stuck).outputs([0, 1, 2])
    assert len(looks) == 3


def test_who_failed_alone_since_the_engine_last_ran_is_not_to_blame_for_its_death() -> None:
    dead: list[int] = []

    def model(items: list[Any], size: int) -> list[Any]:
        if dead or 2 in items:
            raise RuntimeError
        return list(items)

    def alive() -> bool:
        looks.append(1)
        if len(looks) == 2:
            dead.append(1)
        return not dead

    looks: list[int] = []
    rows = [Row(i, item) for i, item in enumerate([1, 2])]
    isolation = Alone(model, Padding("none", 8), alive=alive)
    with pytest.raises(EngineDead, match=r"^the model fails on what it is known to run, too$"):
        isolation.run(rows)
    assert rows[0].output == 1
    assert rows[1].error is NOT_RUN
    assert len(looks) == 2


def test_a_row_that_was_refused_by_the_model_itself_says_nothing_bad_of_the_engine_where_another_ran() -> None:
    looks: list[int] = []
    refused = Refusal.of(ModelFault("not finite"))

    def alive() -> bool:
        looks.append(1)
        return True

    def model(items: list[Any], size: int) -> list[Any]:
        return [refused if item == "nan" else item for item in items]

    isolation = Alone(model, Padding("none", 8), alive=alive)
    assert type(isolation.outputs(["nan", 1])[0]) is ModelFault
    assert not looks
    isolation.outputs(["nan", "nan"])
    assert len(looks) == 1


@pytest.mark.parametrize("n", [MOST_GUILTY - 1, MOST_GUILTY, 40])
def test_an_owner_of_too_many_guilty_rows_is_asked_for_no_more(n: int) -> None:
    rows = [Row(7, f"bad {i}") for i in range(n)] + [Row(1, "good")]
    isolation, tally = Asked(fails_on(*[row.item for row in rows[:n]]), Padding("none", 64)), Tally()
    isolation.run(rows, tally=tally)
    assert tally.guilty == {7: min(n, MOST_GUILTY)}
    assert tally.hopeless() == ({7} if n >= MOST_GUILTY else set())
    assert [row.error is TOO_MANY_GUILTY for row in rows] == [i >= MOST_GUILTY for i in range(n)] + [False]
    assert rows[-1].output == "good"
    assert sum(len(items) == 1 and items[0] != "good" for items, _ in isolation.asked) == min(n, MOST_GUILTY)


def test_no_owner_is_hopeless_before_any_row_is_guilty() -> None:
    assert Tally().hopeless() == set()
    assert Tally(guilty={1: MOST_GUILTY - 1, 2: MOST_GUILTY, 3: MOST_GUILTY + 1}).hopeless() == {2, 3}
    assert TOO_MANY_GUILTY.message == "the model failed on 16 inputs of this request, and was asked for no more"


def test_two_owners_are_told_apart_before_their_rows() -> None:
    isolation = Asked(fails_on(3), Padding("none", 8))
    isolation.run([Row(item % 2, item) for item in range(4)])
    assert [items for items, _ in isolation.asked] == [[0, 1, 2, 3], [0, 2], [1], [3]]


def test_where_time_ran_out_before_anything_ran_the_ceiling_stays() -> None:
    now = [0.0]

    def full(items: list[Any], size: int) -> list[Any]:
        now[0] = 9.0
        raise MemoryError

    isolation = Alone(full, Padding("static", 8), clock=lambda: now[0])
    assert [type(answer) for answer in isolation.outputs([1, 2], stop_at=5.0)] == [Unavailable] * 2
    assert isolation.ceiling.rows == 8


def test_all_who_were_refused_since_the_engine_last_ran_are_not_to_blame_for_its_death() -> None:
    refused = Refusal.of(ModelFault("not finite"))
    rows = [Row(i, i) for i in range(3)]
    isolation = Alone(
        lambda items, size: [refused if item else item for item in items], Padding("none", 1), alive=lambda: False
    )
    with pytest.raises(EngineDead):
        isolation.run(rows)
    assert [row.error for row in rows] == [None, NOT_RUN, NOT_RUN]
