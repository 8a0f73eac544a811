"""How many workers a model has for its load: within the limits, never to and fro under a constant load, few changes an hour."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.host.workers_by_load import DOWN, HOUR_S, LIMIT, UP, Load, WorkersByLoad

NO_LIMIT = 1 << 30


def run(
    chooser: WorkersByLoad, workers: int, looks: int, load: Callable[[int, int], Load], room: int = NO_LIMIT, start: int = 0
) -> list[int]:
    """The numbers of workers, one a look and second. load(workers, look)."""
    numbers = []
    for i in range(start, start + looks):
        wanted = chooser.choose(load(workers, i), workers, float(i), lambda: room)
        if wanted != workers:
            chooser.unsettled()
        workers = wanted
        numbers.append(workers)
    return numbers


def steps(numbers: Sequence[int]) -> list[int]:
    """The numbers without those that are as the one before."""
    return [number for number, _ in itertools.groupby(numbers)]


def closed_loop(cores: int, waiting: float = 0.0) -> Callable[[int, int], Load]:
    """Clients that keep every worker busy; more workers than cores give no more answers."""
    return lambda workers, _: Load(1.0, 100.0 * min(workers, cores), waiting=waiting)


def at_rate(work: float, late: float = 0.0) -> Callable[[int, int], Load]:
    """So many workers' time is wanted."""
    return lambda workers, _: Load(min(1.0, work / workers), 50.0 * min(work, workers), late)


def test_it_takes_as_many_workers_as_give_more_answers_and_tries_one_more_once() -> None:
    chooser = WorkersByLoad(1, 8)
    assert steps(run(chooser, 1, 500, closed_loop(3))) == [1, 2, 3, 4, 3]
    assert [change.why for change in chooser.changes] == ["busy", "busy", "busy", "useless"]
    assert "3, not 4: they gave 300 answers a second, 3 gave 300" in chooser.choice


def test_it_doubles_them_where_batches_wait_for_each() -> None:
    assert steps(run(WorkersByLoad(1, 8), 1, 100, closed_loop(8, waiting=2.0))) == [1, 2, 4, 8]


def test_an_idle_model_has_the_fewest_and_at_once() -> None:
    assert steps(run(WorkersByLoad(2, 8), 8, 2 * DOWN, at_rate(0.0))) == [8, 2]
    assert run(WorkersByLoad(1, 8), 8, DOWN, at_rate(0.0)) == [8] * (DOWN - 1) + [1]


def test_a_moment_of_load_or_of_rest_changes_nothing() -> None:
    def moments(workers: int, look: int) -> Load:
        return Load(1.0 if look % UP else 0.3, 100.0)

    def rests(workers: int, look: int) -> Load:
        return Load(0.0 if look % DOWN else 0.7, 100.0)

    assert steps(run(WorkersByLoad(1, 8), 1, 500, moments)) == [1]
    assert steps(run(WorkersByLoad(1, 8), 4, 500, rests)) == [4]


def test_late_answers_ask_for_more_where_workers_have_something_to_do() -> None:
    def late_with_one(workers: int, look: int) -> Load:
        return Load(1.2 / workers / 2, 50.0, 0.2 if workers == 1 else 0.0)

    assert steps(run(WorkersByLoad(1, 4), 1, 100, late_with_one)) == [1, 2]
    assert steps(run(WorkersByLoad(1, 4), 1, 100, at_rate(0.1, late=1.0))) == [1]  # what is slow by itself


def test_another_load_lets_more_be_tried_again() -> None:
    chooser = WorkersByLoad(1, 4)
    assert steps(run(chooser, 1, 100, closed_loop(1))) == [1, 2, 1]
    assert steps(run(chooser, 1, 100, lambda workers, _: Load(1.0, 130.0 * workers), start=100))[-1] == 4


def test_after_a_rest_more_are_tried_again() -> None:
    chooser = WorkersByLoad(1, 4)
    run(chooser, 1, 100, closed_loop(1))
    run(chooser, 1, 1, at_rate(0.2), start=100)
    assert steps(run(chooser, 1, 100, closed_loop(2), start=101)) == [1, 2, 3, 2]


def test_no_worker_more_without_memory_for_it() -> None:
    chooser = WorkersByLoad(1, 8)
    assert steps(run(chooser, 1, 100, closed_loop(8), room=2)) == [1, 2]
    assert chooser.choice == "2: there is no memory for one more"


def test_beyond_its_share_it_has_cores_that_are_free_and_gives_them_back() -> None:
    def looks(chooser: WorkersByLoad, workers: int, free: Callable[[int], float], start: int = 0) -> list[int]:
        numbers = []
        for i in range(start, start + 100):
            wanted = chooser.choose(closed_loop(8)(workers, i), workers, float(i), lambda: NO_LIMIT, free(workers))
            if wanted != workers:
                chooser.unsettled()
            numbers.append(workers := wanted)
        return numbers

    chooser = WorkersByLoad(1, 8, share=2)
    assert steps(looks(chooser, 1, lambda workers: 0.0)) == [1, 2]
    assert chooser.wants_its_share(2)
    assert steps(looks(chooser, 2, lambda workers: 4.4 - workers, start=100)) == [3, 4]
    assert not chooser.wants_its_share(4)
    assert chooser.to_its_share(4, 200.0) == 2
    assert chooser.changes[-1].words == "another model wants its share of the cores"
    chooser.limit(1, 8)  # an operator's word
    assert steps(looks(chooser, 2, lambda workers: 0.0, start=300))[-1] == 8


def test_advice_changes_nothing_and_is_given_once() -> None:
    chooser = WorkersByLoad(1, 8, advise=True)
    assert steps(run(chooser, 1, 200, closed_loop(8))) == [1]
    assert len(chooser.changes) == 1
    assert chooser.choice.startswith("it would choose 2, not 1: 1 are busy 100%")
    assert steps(run(chooser, 1, 10, at_rate(0.6), start=200)) == [1]
    assert steps(run(chooser, 1, 10, closed_loop(8), start=210)) == [1]
    assert len(chooser.changes) == 2


def test_those_that_do_not_start_are_not_asked_for_again() -> None:
    chooser = WorkersByLoad(1, 8)
    assert run(chooser, 1, UP, closed_loop(8))[-1] == 2
    chooser.unsettled()
    assert chooser.failed(2, "no memory", 9.0) == 1
    assert chooser.failed(1, "no memory", 9.0) == 1
    assert steps(run(chooser, 1, 100, closed_loop(8), start=10)) == [1]
    assert chooser.counts == {"busy": 1, "failed": 1}


def test_an_operator_who_says_how_many_is_obeyed() -> None:
    chooser = WorkersByLoad(1, 8)
    chooser.limit(3, 3)
    assert steps([*run(chooser, 3, 200, closed_loop(8)), *run(chooser, 3, 200, at_rate(0.0))]) == [3]


def test_the_limit_of_changes_keeps_some_for_more_workers() -> None:
    def days(workers: int, look: int) -> Load:
        return at_rate(2.9 if look // 100 % 2 else 0.1)(workers, look)

    chooser = WorkersByLoad(1, 4)
    numbers = run(chooser, 1, 3000, days)
    assert chooser.counts == {"busy": 9, "idle": 2}
    assert numbers[-1] == 4
    assert chooser.choice == f"4, not 1: there were {LIMIT - 1} changes within an hour"


growing = st.lists(st.floats(0, 3), min_size=16, max_size=16).map(lambda steps: list(itertools.accumulate(steps)))


@settings(max_examples=200, deadline=None)
@given(
    growing,
    st.integers(1, 16),
    st.integers(1, 8),
    st.integers(1, 16),
    st.floats(0, 1),
    st.lists(st.floats(1, 1000), min_size=16, max_size=16),
)
def test_a_constant_load_never_makes_it_go_to_and_fro(
    work: list[float], start: int, least: int, more: int, late: float, rates: list[float]
) -> None:
    """Whatever its work is with so many workers (never less with more), and whatever they give."""
    most = min(16, least + more)
    start = min(most, max(least, start))

    def constant(workers: int, look: int) -> Load:
        return Load(min(1.0, work[workers - 1] / workers), rates[workers - 1], late)

    numbers = steps([start, *run(WorkersByLoad(least, most), start, 2000, constant)])
    assert all(least <= number <= most for number in numbers)
    ways = [after > before for before, after in itertools.pairwise(numbers)]
    assert ways == sorted(ways, reverse=True)  # first more, then fewer
    assert ways.count(False) <= 1 or not any(ways)


loads = st.builds(Load, st.floats(0, 1), st.floats(0, 1000), st.floats(0, 1), st.floats(0, 4))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(loads, st.integers(1, 60)), max_size=60), st.integers(1, 4), st.integers(0, 8), st.integers(0, 12))
def test_whatever_the_load_does_it_stays_within_its_limits(
    phases: list[tuple[Load, int]], least: int, more: int, room: int
) -> None:
    chooser = WorkersByLoad(least, least + more)
    workers, times = least, list[float]()
    for look, load in enumerate(load for load, count in phases for _ in range(count)):
        wanted = chooser.choose(load, workers, float(look), lambda: room)
        if wanted != workers:
            assert least <= wanted <= least + more
            assert wanted <= max(workers, room)
            times.append(look)
            chooser.unsettled()
        workers = wanted
    assert all(after - before >= HOUR_S for before, after in zip(times, times[LIMIT:], strict=False))
    assert sum(chooser.counts.values()) == len(times)
