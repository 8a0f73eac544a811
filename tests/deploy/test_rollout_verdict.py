"""When a new archive counts as worse: by a test that may be asked after every window, for as long as one likes."""

from __future__ import annotations

import math
import random
from typing import Any

from slotwise.frontend.rollout.verdict import ALARM, BETS, LEAST_WINDOWS, Evidence, Judge, Judgement
from tests.support import rollouts


def window(new: int = 0, old: int = 0, slow: tuple[int, int] = (0, 0), requests: int = 50, **given: Any) -> dict[str, Any]:
    """One window in which so many requests of each fail, and so many are slow."""
    usual = {"requests": requests, "errors": 0, "refused": 0, "ms": [1.0, 2.0, 3.0]}
    sides = {"old": {**usual, "errors": old, "slow": [slow[1]] * 3}, "new": {**usual, "errors": new, "slow": [slow[0]] * 3}}
    return {"refusals": True, **sides, **given}


def judged(windows: list[dict[str, Any]]) -> Judgement:
    judge = Judge()
    for one in windows:
        judge.add(one)
    return judge.judgement()


def called_worse(scenario: rollouts.Scenario, runs: int, rate: float = rollouts.RATE) -> list[str]:
    outcomes = [rollouts.simulated(scenario, rate, seed)[0] for seed in range(runs)]
    return [outcome for outcome in outcomes if outcome != rollouts.MISS]


def test_errors_and_slowness_are_said_with_their_figures() -> None:
    assert judged([window(new=10)] * 20).worse == "20.00% of its requests fail, 0.00% of the old one's (1000 and 1000 requests)"
    assert judged([window(slow=(25, 5))] * 20).worse == "its p50 is 1.0 ms, the old one's 1.0 ms (1000 and 1000 requests)"
    assert judged([window(old=10, slow=(5, 25))] * 20) == Judgement(enough=True)


def test_who_waits_is_told_what_is_missing() -> None:
    judge = Judge()
    judge.add({**window(requests=300), "old": window(requests=31)["old"]})
    assert judge.so_far() == "31 of 200 requests of each"
    for _ in range(3):
        judge.add(window(requests=100))
    assert judge.so_far() == f"4 of {LEAST_WINDOWS} windows"
    assert not judge.judgement().enough


def test_what_was_refused_counts_only_where_both_have_the_same_load() -> None:
    refused = {"requests": 50, "errors": 0, "refused": 20, "slow": [0] * 3, "ms": [0.0] * 3}
    assert judged([{**window(), "new": refused}] * 20).worse
    assert not judged([{**window(), "new": refused, "refusals": False}] * 20).worse


def test_a_window_is_one_observation_however_much_fails_in_it() -> None:
    assert not judged([window()] * 10 + [window(new=50)] * 3 + [window()] * 10).worse


def test_a_step_lasts_until_there_are_200_requests_of_both_and_windows_enough_to_say_anything() -> None:
    judge = Judge()
    for _ in range(LEAST_WINDOWS - 1):
        judge.add(window())
    assert not judge.judgement().enough
    judge.add(window())
    assert judge.judgement().enough
    judge.begin_step()
    judge.add(window(requests=199))
    assert not judge.judgement().enough


def test_the_evidence_never_has_a_mean_above_one() -> None:
    """By symmetry: for every size of a difference, both signs together give at most twice as much as before."""
    for size in (0.1, 1.0, 3.0, 40.0, 5000.0):
        for bet in BETS:
            up, down = (math.exp(sign * bet * size - (bet * size) ** 2 / 2) for sign in (1, -1))
            assert up + down <= 2


def test_asked_a_hundred_thousand_times_it_still_gives_few_false_alarms() -> None:
    """A coin that is fair, asked after every toss: a test at 95% for one look would have called nearly every one of them."""
    alarms = 0
    for seed in range(40):
        draw, evidence = random.Random(seed), Evidence()
        for _ in range(2500):
            evidence.add([draw.choice((-1, 0, 1)) * draw.choice((1, 1, 30))])
        alarms += evidence.highest >= ALARM
    assert alarms <= 1


def test_roll_outs_of_equal_archives_are_called_worse_less_than_once_in_twenty() -> None:
    for scenario in rollouts.EQUAL:
        if scenario.times_longer == 1:
            assert len(called_worse(scenario, runs=40)) <= 2, scenario.name


def test_roll_outs_of_worse_archives_are_called_worse_for_what_is_worse() -> None:
    for scenario in rollouts.WORSE:
        if scenario.errors == 0.0:
            kind = "errors" if scenario.more else "times"
            found = called_worse(scenario, runs=20)
            assert found == [kind] * len(found)
            assert len(found) >= 18, scenario.name
