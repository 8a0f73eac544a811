"""Our own host's dispatcher in virtual time: what "auto" chooses, by how much it is better, and what it never does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from slotwise.bench.offline import LinearTime
from slotwise.cli import build_app
from slotwise.errors import SlotwiseError
from slotwise.tune.virtual_host import Arrival, VirtualLoad, VirtualSetting, day, read_trace, serve

LINE, TARGET_MS = LinearTime(1.0, 5.0), 60.0  # 16 in 21 ms
CAPACITY = 16 / 0.021
STATIC = [(4, 0.0, "free"), (16, 2.0, "free"), (8, 10.0, "exact"), (16, 10.0, "exact")]
LOADS = {
    "8 clients": VirtualLoad(2, clients=8),
    "30 clients": VirtualLoad(2, clients=30),
    "half": VirtualLoad(2, rate=0.5 * CAPACITY),
    "most": VirtualLoad(2, rate=0.8 * CAPACITY),
    "day": VirtualLoad(4, trace=day(4, CAPACITY)),
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_auto_answers_as_many_in_time_as_the_best_static_setting_for_that_very_load(load: VirtualLoad) -> None:
    static = [serve(VirtualSetting(LINE, linger, size, delay, TARGET_MS, noise=0.05), load) for size, delay, linger in STATIC]  # type: ignore[arg-type]
    auto = serve(VirtualSetting(LINE, "auto", 16, 10, TARGET_MS, noise=0.05), load)
    assert auto.in_time >= 0.97 * max(one.in_time for one in static)


@pytest.mark.parametrize("seed", range(4))
def test_two_workers_share_eight_clients_evenly(seed: int) -> None:
    """Without that one has seven of them for ever, as each waits for those that it has answered."""
    slow, load = LinearTime(8.5, 10.0), VirtualLoad(8, clients=8)
    even = serve(VirtualSetting(slow, "free", 4, 1, workers=2, noise=0.15), load, seed)
    auto = serve(VirtualSetting(slow, "auto", 32, 20, 1000, workers=2, noise=0.15), load, seed)
    assert auto.answered >= 0.97 * even.answered


def test_auto_keeps_a_target_that_large_batches_would_miss() -> None:
    """Twelve at once, of which one goes alone and eleven take 76 ms: five take 40, and there is a second to catch up."""
    slow = LinearTime(6.0, 10.0)
    bursts = VirtualLoad(20, trace=[Arrival(at, f"{at} {i}") for at in range(20) for i in range(12)])
    auto, free = (serve(VirtualSetting(slow, linger, 16, 0, 60), bursts) for linger in ("auto", "free"))  # type: ignore[arg-type]
    assert free.in_time == 20
    assert auto.in_time > 4 * free.in_time
    assert auto.chosen["target"] > 0


@pytest.mark.parametrize("line", [LINE, LinearTime(0.05, 5.0), LinearTime(2.0, 0.2)], ids=["both", "a batch", "a request"])
def test_beside_512_under_way_a_single_request_waits_for_one_batch_and_a_tenth_longer_than_alone(line: LinearTime) -> None:
    """The next batch has it, with so few mates that it takes a tenth longer than its own part at most."""
    crowd = [Arrival(0.0, "crowd") for _ in range(512)] + [Arrival(i / 1000, "crowd") for i in range(4000)]
    single = [Arrival(0.2 + i * 0.1, "single") for i in range(20)]
    found = serve(VirtualSetting(line, "free"), VirtualLoad(4, trace=sorted(crowd + single, key=lambda one: one.at_s)))
    own = [batch for batch in found.sent if "single" in batch]
    assert len(own) == 20
    assert all(line.at(len(batch)) <= 1.1 * line.at(1) for batch in own)
    assert all(len(batch) == 16 for batch in found.sent[8:20] if "single" not in batch)


@pytest.mark.parametrize(
    ("reason", "line", "delay_ms", "load"),
    [
        ("pays", LINE, 10, VirtualLoad(3, clients=8)),
        ("nobody", LinearTime(5.0, 2.0), 10, VirtualLoad(3, clients=16)),
        ("enough", LINE, 10, VirtualLoad(3, rate=2 * CAPACITY)),
        ("short", LinearTime(1.0, 0.0), 10, VirtualLoad(3, clients=8)),
        ("limit", LINE, 0, VirtualLoad(3, clients=8)),
    ],
)
def test_it_says_why_a_worker_waits_or_does_not(reason: str, line: LinearTime, delay_ms: float, load: VirtualLoad) -> None:
    found = serve(VirtualSetting(line, "auto", 16, delay_ms, TARGET_MS), load)
    assert max(found.waits, key=lambda why: found.waits[why]) == reason
    assert found.asked == found.answered + found.refused


def test_advise_forms_the_same_batches_as_free_and_says_what_it_would_choose() -> None:
    load = VirtualLoad(2, rate=CAPACITY)
    advise, free = (serve(VirtualSetting(LINE, linger, 16, 2, 25), load) for linger in ("advise", "free"))  # type: ignore[arg-type]
    assert advise.sent == free.sent
    assert sum(advise.chosen.values()) > 0
    assert not free.chosen


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["auto", "free", "exact", "advise"]),
    st.integers(1, 16),
    st.floats(0, 10),
    st.floats(0, 100),
    st.integers(1, 3),
    st.floats(0, 1),
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from("abc"), st.floats(0.001, 5)), min_size=1, max_size=120),
)
def test_whatever_comes_each_request_ends_once_and_no_limit_is_exceeded(
    linger: str,
    batch_size: int,
    delay_ms: float,
    target_ms: float,
    workers: int,
    noise: float,
    came: list[tuple[float, str, float]],
) -> None:
    setting = VirtualSetting(LINE, linger, batch_size, delay_ms, target_ms, workers, noise)  # type: ignore[arg-type]
    load = VirtualLoad(1, trace=[Arrival(*one) for one in came])
    found = serve(setting, load)
    assert found.asked == len(came) == found.answered + found.refused
    assert max(map(len, found.sent), default=0) <= batch_size
    assert found == serve(setting, load)


def test_costs_that_are_all_over_the_place_make_it_lose_nothing() -> None:
    load = VirtualLoad(3, clients=20, trace=[Arrival(i / 100, "late", 0.05) for i in range(300)])
    found = serve(VirtualSetting(LINE, "auto", 16, 2, 40, noise=1.0), load)
    assert found.asked == found.answered + found.refused
    assert found.mean_batch > 4


def test_who_is_in_a_batch_that_ends_after_its_deadline_is_refused() -> None:
    slow = VirtualSetting(LinearTime(0.0, 1000.0))
    found = serve(slow, VirtualLoad(5, trace=[Arrival(0.0, "late", 0.05), Arrival(0.0, "in time")]))
    assert (found.asked, found.answered, found.in_time, found.refused) == (2, 1, 1, 1)
    assert (found.mean_batch, found.sent) == (1.0, [["late"], ["in time"]])


def test_a_trace_is_read_and_a_wrong_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"at_s": 0.5, "sender": "a"}\n{"at_s": 1, "within_s": 2}\n')
    assert read_trace(file) == [Arrival(0.5, "a"), Arrival(1.0, "", 2.0)]
    file.write_text('{"at_s": 0.5, "sender": "a\u2028b"}\r\n{"at_s": 1}', "utf-8")
    assert read_trace(file) == [Arrival(0.5, "a\u2028b"), Arrival(1.0)]
    large, deep = f'{{"at_s": {"9" * 400}}}', "[" * 100_000
    for wrong in ("{", "[]", '{"at_s": -1}', '{"at_s": NaN}', '{"at_s": 1, "within_s": 0}', '{"when": 1}', large, deep, "\xff"):
        file.write_text(f'{{"at_s": 0.5}}\n{wrong}\n', "latin-1")
        with pytest.raises(SlotwiseError, match="line 2"):
            read_trace(file)


def test_the_command_prints_each_way_and_refuses_what_is_none() -> None:
    line = ["simulate", "--batch-ms", "5", "--request-ms", "1", "--seconds", "1"]
    done = CliRunner().invoke(build_app(), [*line, "--clients", "8", "--slo-p99-ms", "60", "--json"])
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout)) == ["free", "exact", "auto"]
    for wrong in (["--clients", "8", "--linger", "magic"], [], ["--rate", "inf"], ["--clients", "8", "--batch-ms", "inf"]):
        assert CliRunner().invoke(build_app(), [*line, *wrong]).exit_code == 2


def test_workers_follow_a_load_that_rises_and_falls_and_more_are_answered_in_time_than_with_one() -> None:
    trace = [Arrival(at / 1000, f"caller {at}") for at in range(60_000) if at % 20 == 0 or 15_000 <= at < 25_000]
    few = VirtualSetting(LinearTime(1.0, 2.0), batch_size=4, target_ms=60.0)
    one, auto = (serve(replace(few, max_workers=most), VirtualLoad(120, trace=trace)) for most in (0, 4))
    assert auto.in_time > 1.15 * one.in_time
    assert (one.most_workers, one.changes) == (1, [])
    assert [(change.after, change.why) for change in auto.changes] == [(2, "busy"), (1, "idle")]
    assert auto.worker_s < 2 * one.worker_s


def test_workers_that_share_a_core_are_sent_away_again() -> None:
    setting = VirtualSetting(LINE, max_workers=8, cores=1, noise=0.05)
    found = serve(setting, VirtualLoad(100, clients=64))
    assert [(change.after, change.why) for change in found.changes] == [(2, "busy"), (1, "useless")]
    assert found.answered == found.asked


@given(
    st.lists(st.tuples(st.floats(0, 1500), st.integers(1, 10)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 100),
)
@settings(max_examples=8, deadline=None)
def test_whoever_comes_is_answered_or_refused_whatever_the_number_of_workers_does(
    phases: list[tuple[float, int]], least: int, more: int, cores: int, seed: int
) -> None:
    trace, at = list[Arrival](), 0.0
    for rate, seconds in phases:
        trace += [Arrival(at + i / rate, f"{at} {i}") for i in range(int(rate * seconds))] if rate else []
        at += seconds
    setting = VirtualSetting(LINE, "auto", 16, 5, 60, least, 0.1, least + more, cores=cores)
    found = serve(setting, VirtualLoad(at + 40, trace=trace), seed)
    assert found.asked == len(trace) == found.answered + found.refused
    assert found.most_workers <= least + more
