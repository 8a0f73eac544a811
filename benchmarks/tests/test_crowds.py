"""What the figures of a crowd and of adversaries make of what they measured."""

from __future__ import annotations

import asyncio
import math
import time
import zlib
from typing import Any

import pytest

from benchmarks.measuring import adversaries as troubled
from benchmarks.measuring import day, instances, loads
from benchmarks.measuring import fairness as fairness_of
from benchmarks.measuring.adversaries import KEPT_S, TARGET_MS, Judged, Load, Sent, _p99_ms, back_s
from benchmarks.measuring.fairness import verdict
from benchmarks.measuring.priced import Priced, Row
from benchmarks.measuring.rounds import Reading
from benchmarks.pages import crowds
from benchmarks.pages.crowds import adversaries, fairness
from slotwise.bench import load_tools
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import HttpReply, Target
from slotwise.bench.load import LoadResult
from slotwise.bench.offline import LinearTime
from slotwise.profiles.profile import load_profile

LATE_S = 2 * TARGET_MS / 1000


def test_a_crowd_may_cost_half_as_much_again_and_a_full_batch() -> None:
    one = {"p50_ms": 8.0, "p99_ms": 10.0, "many_lost": 0, "many_a_second": 9.0, "full_batch_ms": 30.0}
    rounds = [{"alone": one, "beside": {**one, "p99_ms": p99_ms}} for p99_ms in (44.0, 45.0, 99.0)]
    found = verdict(rounds)
    assert (found["allowed_ms"], found["beside_p99_ms"], found["held"]) == (45.0, 45.0, True)
    assert not verdict([{**each, "beside": {**each["beside"], "full_batch_ms": 29.0}} for each in rounds])["held"]
    for broken in ({"many_lost": 1}, {"many_a_second": 0.0}):
        assert not verdict([{**each, "beside": {**each["beside"], **broken}} for each in rounds])["held"]
    row = {"model": "m", "batch_size": 16, **found}
    assert "| m | 16 | 30 | 8 | 10 | 8 | 45 | 45 | yes | 0 |" in fairness({"fairness": {"rows": [row]}})


def test_many_of_whom_some_fail_are_not_measured_again_beside_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = LoadResult(512, None, 1.0, 1000, 960.0, *[1.0] * 5, 0.0, 0.0, 0.0, {"not 2xx": 40})
    monkeypatch.setattr("shutil.which", lambda tool: tool)
    monkeypatch.setattr(load_tools, "_wrk", lambda target, bodies, plan, folder: counts)
    monkeypatch.setattr("slotwise.bench.load.measure", None)
    assert fairness_of._many(Target("http://127.0.0.1:1/", {}), RequestBody(b"x"), 1.0) is counts


def test_the_target_is_kept_from_the_last_late_answer_on() -> None:
    def judged(late_until: float, until: float) -> list[Judged]:
        times = [i / 10 for i in range(int(until * 10))]
        return [Judged(at, LATE_S if at < late_until else 0.01, "right") for at in times]

    assert back_s(judged(0, 20), 0, 20) == 0
    assert back_s(judged(3, 20), 0, 20) == 2.9
    assert back_s(judged(3, 20), 0, 2.9 + KEPT_S - 0.1) is None
    assert back_s([Judged(1, LATE_S, "poisoned"), Judged(2, 0.01, "right")], 0, 20) == 0
    assert back_s([Judged(i / 10, 0.001, "lost") for i in range(200)], 0, 20) is None
    assert back_s([], 0, 20) is None
    assert _p99_ms([], 0, 20) == math.inf
    row = {"name": "a", "right": 9, "lost": 0, "wrong": 0, "poisoned": 1, "changes": 2, "longest_back_s": None}
    page = adversaries({"adversaries": {"rows": [{**row, "p99_before_ms": 12.0, "p99_meanwhile_ms": 140.0}]}})
    assert "| a | 9 | 0 | 0 | 1 | 2 | 12 | 140 | not within a minute |" in page


def test_a_body_has_its_price() -> None:
    handler = Priced()
    (row,) = handler.decode(b"2.5 ok\nabc", {})
    assert row == Row(0.0025, False, zlib.crc32(b"2.5 ok\nabc"))
    began = time.thread_time()
    assert handler.predict([row, row]) == [row.checksum] * 2
    assert time.thread_time() - began > 0.008
    with pytest.raises(ValueError, match="cannot be computed"):
        handler.predict([row, *handler.decode(b"1 fail\n", {})])


def test_what_is_chosen_is_held_against_the_best_that_stays() -> None:
    quick, wide, slow = loads.Static(2, 4, 0), loads.Static(2, 16, 5), loads.Static(1, 1, 0)
    tried = {slow: Reading(50, p99_ms=9.0), wide: Reading(100, p99_ms=40.0), quick: Reading(99.9, p99_ms=20.0)}
    assert loads.best(tried) == [quick, wide, slow]
    readings = {
        loads.AUTO: [Reading(98, p99_ms=30.0), Reading(97, p99_ms=31.0)],
        str(quick): [Reading(100, p99_ms=20.0), Reading(100, p99_ms=20.0)],
        str(slow): [Reading(50, p99_ms=9.0)] * 2,
    }
    found = loads.verdict(readings, 50.0)
    assert (found["best"], found["kept"], found["held"]) == (str(quick), True, True)
    assert not loads.verdict(readings, 30.0)["kept"]  # a static one keeps it
    assert not loads.verdict({**readings, loads.AUTO: [Reading(96, p99_ms=30.0)] * 2}, 50.0)["held"]
    page = crowds.loads({"loads": {"rows": [{"model": "m", "load": "8 clients", **found}]}})
    assert "| m | 8 clients | 50 | 97.5, 30.5 ms | 2 x batch 4, 0 ms | 100, 20 ms |" in page
    settings = loads.auto_settings(50.0)
    assert load_profile("cpu", settings, environ={}, cores=2).chosen == {"batch_size", "max_batch_delay_ms", "initial_workers"}


def test_a_batch_is_taken_apart_into_as_many_parts_as_there_are_cores() -> None:
    assert [str(instances.shape(one, 16, 2)) for one in ("fat", "thin")] == ["1 x batch 16, 5 ms", "2 x batch 8, 5 ms"]
    one = object.__new__(instances.Instances)
    one.cores, one.table = 2, {1: {1: 10.0, 8: 80.0, 16: 160.0}, 2: {1: 10.0, 8: 60.0, 16: 110.0}}
    fat, thin = (one.simulated(name, 16) for name in ("fat", "thin"))
    assert thin / fat == pytest.approx(110 / 80, rel=0.03)
    row = {"workload": "m", "concurrency": 16, "rps": 100.0, "p99_ms": 160.0, "lost": 0, "to_fat": None}
    better = {**row, "rps": 140.0, "to_fat": {"median": 1.4, "low": 1.3, "high": 1.5}, "simulated": thin}
    rows = [{**row, "system": "fat", "simulated": fat}, {**better, "system": "thin"}]
    page = crowds.instances({"instances": {"cores": 2, "rows": rows}})
    assert "| m | 16 | 100, 160 ms | 140, 160 ms | 1.4 (1.3 to 1.5) | 1.3" in page


def test_a_day_is_judged_by_its_answers_in_time_and_its_simulation() -> None:
    def lived(name: str, in_time: int, simulated: int, **others: int) -> dict[str, Any]:
        second = {"asked": 5, "in_time": 4, "refused": 0, "lost": 0}
        counts = {"asked": 200, "in_time": in_time, "refused": 1, "lost": 0, "changes": 3, **others}
        return day._row([{"name": name, **counts, "second": second, "simulated": {"in_time": simulated}}])

    rows = [lived(day.AUTO, 130, 140), lived("2 x batch 4, 1 ms", 100, 95), lived("1 x batch 1, 0 ms", 20, 90)]
    found = day.verdict(rows)
    assert (found["best"], found["times"]) == ("2 x batch 4, 1 ms", 1.3)
    assert all(found["held"].values())
    assert not day.verdict([rows[0], lived("other", 101, 101, lost=1)])["held"]["lost"]
    assert not day.verdict([lived(day.AUTO, 130, 144), rows[1]])["held"]["simulated"]
    page = crowds.day({"day": {"plan": {"times": day.TIMES}, "rows": rows, **found}})
    assert "| auto | 200 | 130 | 140 | 1 | 0 | 3 | 4 of 5 |" in page
    assert "1.3 times as many in time as 2 x batch 4, 1 ms" in page


def test_a_days_requests_are_the_same_for_every_system() -> None:
    one, learned = day.Day([], 60.0, 50.0), day.Learned(LinearTime(7.0, 4.0), 2.0, 0)
    first, second = one.arrivals(1)
    assert [first, second] == one.arrivals(1) != one.arrivals(2)
    assert all(day.WAKES * 60 <= each.at_s < day.SLEEPS_AGAIN * 60 for each in second)
    found = one.simulated(None, 1, learned)
    assert found["asked"] == len(first)
    assert found == one.simulated(None, 1, learned)


def test_who_gets_no_answer_is_lost_also_at_the_end_and_also_with_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bytes] = []

    class Silent:
        def __init__(self, target: object) -> None:
            pass

        async def ask(self, request: bytes) -> HttpReply:
            if request:
                await asyncio.sleep(3600)
            return HttpReply(200 if answers else 503, {}, b"".join(answers))

        def close(self) -> None:
            pass

    async def load(body: bytes, answer: int | None) -> set[str]:
        made = Load(None, lambda number: Sent(body, answer))  # type: ignore[arg-type]
        with made.running():
            await asyncio.sleep(0.1)
            await made.settled()
        return {one.kind for one in made.judged}

    monkeypatch.setattr(troubled, "Connection", Silent)
    monkeypatch.setattr(troubled, "CLIENTS", 2)
    monkeypatch.setattr(troubled, "ANSWER_S", 0.2)
    assert asyncio.run(load(b"silent", 1)) == asyncio.run(load(b"silent", None)) == asyncio.run(load(b"", 1)) == {"lost"}
    assert asyncio.run(load(b"", None)) == {"poisoned"}
    for body, answer, kind in ((b"1", 1, "right"), (b"2", 1, "wrong"), (b"<html>", 1, "wrong"), (b"1", None, "wrong")):
        answers[:] = [body]
        assert asyncio.run(load(b"", answer)) == {kind}
    assert _p99_ms([Judged(1.0, 0.01, "right"), Judged(12.0, 10.0, "lost")], 0, 3) == math.inf


def test_requests_that_were_due_while_the_host_stood_still_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stalled:
        def __init__(self, target: object) -> None:
            pass

        async def ask(self, request: bytes) -> HttpReply:
            await asyncio.sleep(max(0.0, began + 0.5 - time.monotonic()))
            return HttpReply(200, {}, b"1")

        def close(self) -> None:
            pass

    async def load() -> list[Judged]:
        made = Load(None, lambda number: Sent(b"", 1))  # type: ignore[arg-type]
        with made.running():
            await asyncio.sleep(0.8)
        return made.judged

    monkeypatch.setattr(troubled, "Connection", Stalled)
    monkeypatch.setattr(troubled, "CLIENTS", 2)
    monkeypatch.setattr(troubled, "RATE", 40)
    began = time.monotonic()
    assert sum(one.took_s > 0.1 for one in asyncio.run(load())) >= 12  # of the 20 that were due until then
