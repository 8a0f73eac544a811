"""The load generator against stand-in servers."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.bench import load_tools, report
from slotwise.bench.bodies import RequestBody, bad_bodies, bad_http_bodies, deck, with_records
from slotwise.bench.http_connection import Connection, Target, run
from slotwise.bench.load import RequestSample, _LoadRun, due_times, measure, percentile, rounded, summary
from slotwise.bench.load_plan import LoadPlan
from slotwise.errors import SlotwiseError
from tests.standin import Answer, answer, standin

GOOD = RequestBody(b"good", "text/plain", name="good.txt")


@pytest.mark.parametrize("even", [False, True])
def test_however_long_the_warm_up_is_the_measured_requests_come_at_the_same_times(even: bool) -> None:
    def measured(warm_up_s: float) -> list[float]:
        due = due_times(LoadPlan(rate=50.0, warm_up_s=warm_up_s, even=even), 50.0)
        return [
            round(at - warm_up_s, 6) for at in itertools.takewhile(lambda at: at < warm_up_s + 3.99, due) if at >= warm_up_s
        ]

    assert measured(0.0) == measured(2.0) == measured(30.0)
    assert len(measured(0.0)) in range(150, 250)


def test_as_many_requests_are_counted_as_were_asked_for_whatever_the_warm_up_left() -> None:
    with standin(answer) as url:
        got = measure(Target(url, {}), [GOOD], LoadPlan(clients=8, requests=32, warm_up_s=0.1))
    assert got.requests == 32


def test_closed_loop_counts_every_request() -> None:
    with standin(answer) as url:
        got = measure(Target(url, {}), [GOOD], LoadPlan(clients=4, requests=200, warm_up_s=0.0))
    assert got.requests == 200
    assert got.errors == {}
    assert got.req_s > 0
    assert got.p50_ms <= got.p90_ms <= got.p95_ms <= got.p99_ms <= got.max_ms
    assert got.mean_batch == pytest.approx(4)
    assert (got.decode_ms, got.inference_ms) == pytest.approx((1.0, 3.0))


def test_a_header_that_says_no_number_is_no_trouble() -> None:
    with standin(lambda body, headers: (200, {"x-batch-size": "small", "x-decode-ms": "nan"}, b"ok")) as url:
        got = measure(Target(url, {}), [GOOD], LoadPlan(clients=1, requests=2, warm_up_s=0.0))
    assert (got.errors, got.mean_batch, got.decode_ms) == ({}, 0, 0)


def test_what_goes_wrong_at_one_arrival_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(self: _LoadRun, connection: Connection, due_s: float, late_s: float) -> None:
        self.asked = getattr(self, "asked", 0) + 1  # type: ignore[attr-defined]
        if self.asked == 1:  # type: ignore[attr-defined]
            raise ZeroDivisionError

    monkeypatch.setattr(_LoadRun, "_ask", ask)
    with pytest.raises(ZeroDivisionError):
        measure(Target("http://127.0.0.1:9/x", {}), [GOOD], LoadPlan(clients=2, requests=5, rate=100.0, warm_up_s=0.0))


def test_even_arrivals_are_due_at_equal_distances_and_poissons_are_not() -> None:
    def distances(even: bool) -> list[float]:
        plan = LoadPlan(clients=4, requests=8, rate=100.0, warm_up_s=0.0, even=even)
        with standin(answer) as url:
            load = _LoadRun(Target(url, {}), deck([GOOD], 0.0, 0), plan, lambda done: None)
            run(load.run())
        due = sorted(sample.finished_s - sample.latency_s for sample in load.samples)
        return [later - before for before, later in itertools.pairwise(due)]

    assert distances(True) == pytest.approx([0.01] * 7)
    assert distances(False) != pytest.approx([0.01] * 7)


def test_every_good_answers_time_is_kept_for_a_figure_and_is_not_printed() -> None:
    samples = [RequestSample("200", False, t, t, 0.0, 1) for t in (0.4, 0.1, 0.2)] + [
        RequestSample("500", False, 0.3, 0.3, 0.0, 1)
    ]
    got = summary(samples, LoadPlan(clients=1, requests=4, warm_up_s=0.0))
    assert got.latencies_ms == pytest.approx((100, 200, 400))
    assert got.min_ms == pytest.approx(100)
    assert "latencies_ms" not in rounded(got)
    assert type(got)(**rounded(got)) != got  # what was printed is read again without them


def test_the_figure_shows_which_share_was_answered_within_a_time() -> None:
    pytest.importorskip("matplotlib")
    samples = [RequestSample("200", False, t, t, 0.0, 1) for t in (0.4, 0.1, 0.2, 0.3)]
    results = [summary(samples, LoadPlan(clients=n, requests=4, warm_up_s=0.0)) for n in (1, 8)]
    *_, last = report.load_figure("m", results).axes
    assert [line.get_label() for line in last.lines] == ["1 clients", "8 clients"]
    assert last.lines[0].get_xdata() == pytest.approx([100, 200, 300, 400])
    assert last.lines[0].get_ydata() == pytest.approx([25, 50, 75, 100])
    without = [replace(result, latencies_ms=()) for result in results]  # as from wrk and ab
    assert len(report.load_figure("m", without).axes) == 2


def test_poison_is_not_an_error_of_the_innocent() -> None:
    with standin(answer) as url:
        got = measure(Target(url, {}), [GOOD], LoadPlan(clients=4, requests=300, warm_up_s=0.0, poison=0.2, seed=1))
    assert got.lost == 0
    assert set(got.refused) == {"400"}
    assert 20 <= got.refused["400"] <= 110


def test_innocent_ones_lost_are_counted_by_status() -> None:
    turn = iter(range(10**6))
    with standin(lambda body, headers: answer(body if next(turn) % 10 else b"", headers)) as url:
        got = measure(Target(url, {}), [GOOD], LoadPlan(clients=1, requests=100, warm_up_s=0.0))
    assert got.errors == {"400": 10}


def test_a_broken_connection_is_an_error_and_the_next_request_works() -> None:
    turn = iter(range(10**6))
    with standin(lambda body, headers: None if next(turn) == 3 else answer(body, headers)) as url:
        got = measure(Target(url, {}), [GOOD], LoadPlan(clients=1, requests=10, warm_up_s=0.0))
    assert got.errors == {"connection": 1}
    assert got.requests == 10


def test_open_loop_answers_or_times_out_every_request() -> None:
    released = threading.Event()

    def stuck(body: bytes, headers: object) -> Answer:
        released.wait(60)
        return answer(body, headers)

    with standin(stuck) as url:
        plan = LoadPlan(clients=3, requests=10, rate=500.0, warm_up_s=0.0, timeout_s=0.3)
        got = measure(Target(url, {}), [GOOD], plan)
        released.set()
    assert got.requests == 10
    assert got.errors == {"timeout": 10}


def test_open_loop_latency_counts_from_when_a_request_was_due() -> None:
    """One connection, a server that needs 20 ms, 20 requests due at once: the last one has waited for all the others."""

    def slow(body: bytes, headers: object) -> Answer:
        time.sleep(0.02)
        return answer(body, headers)

    with standin(slow) as url:
        got = measure(Target(url, {}), [GOOD], LoadPlan(clients=1, requests=20, rate=10_000.0, warm_up_s=0.0))
    assert got.errors == {}
    assert got.max_ms > 19 * 20


def test_headers_and_the_token_arrive() -> None:
    seen: dict[str, str] = {}

    def look(body: bytes, headers: object) -> Answer:
        seen.update(headers)  # type: ignore[call-overload]
        return answer(body, headers)

    with standin(look) as url:
        target = Target(url, {"authorization": "Bearer abc"})
        reply = run(Connection(target).ask(target.request(b"good", "image/png")))
    assert (reply.status, reply.body, reply.headers["x-batch-size"]) == (200, b"{}", "4")
    assert (seen["authorization"], seen["content-type"]) == ("Bearer abc", "image/png")


def test_nobody_there_is_a_connection_error() -> None:
    got = measure(Target("http://127.0.0.1:9/x", {}), [GOOD], LoadPlan(clients=2, requests=4, warm_up_s=0.0))
    assert got.errors == {"connection": got.requests}


def test_https_is_refused_with_a_hint() -> None:
    with pytest.raises(SlotwiseError):
        _ = Target("https://somewhere/", {}).address


@given(st.lists(st.integers(0, 1000), min_size=1).map(sorted), st.integers(1, 100))
def test_percentile_is_the_nearest_rank(values: list[int], p: int) -> None:
    value = percentile(values, p)
    assert sum(v <= value for v in values) >= len(values) * p / 100
    assert sum(v < value for v in values) < len(values) * p / 100


def test_mean_batch_is_a_mean_of_batches_not_of_requests() -> None:
    """One batch of 8 and one of 1: nine answers, mean 4.5 (a mean over the answers would say 7.2)."""
    samples = [RequestSample("200", False, 1.0, 0.1, batch_size=8)] * 8 + [RequestSample("200", False, 1.0, 0.1, batch_size=1)]
    assert summary(samples, LoadPlan(warm_up_s=0.0)).mean_batch == pytest.approx(4.5)


@given(st.floats(0.001, 30.0), st.floats(0.0, 5.0), st.floats(0.1, 10.0))
def test_the_rate_is_the_servers_however_slow_it_is(latency_s: float, warm_up_s: float, seconds: float) -> None:
    """Each client asks again at once: it has 1 / latency answers a second, also where one takes longer than the load."""
    number = math.ceil((warm_up_s + seconds) / latency_s)
    samples = [RequestSample("200", False, (n + 1) * latency_s, latency_s) for n in range(number)]
    measured = summary(samples, LoadPlan(clients=1, seconds=seconds, warm_up_s=warm_up_s))
    assert (measured.req_s, measured.seconds) == (pytest.approx(1 / latency_s), pytest.approx(seconds))
    if late := [s for s in samples if s.began_s >= warm_up_s]:
        counted = summary(late, LoadPlan(clients=1, requests=len(late), warm_up_s=warm_up_s))
        assert counted.req_s == pytest.approx(1 / latency_s)


def test_a_load_without_answers_has_no_times() -> None:
    dead = summary([RequestSample("503", False, 1.0, 0.001)], LoadPlan(clients=1, seconds=1.0, warm_up_s=0.0))
    alive = summary([RequestSample("200", False, 1.0, 0.080)], LoadPlan(clients=1, seconds=1.0, warm_up_s=0.0))
    assert rounded(dead)["p99_ms"] is None
    assert rounded(alive)["p99_ms"] == 80.0
    assert [str(list(column.cells)[1]) for column in report.load_table("m", [alive, dead]).columns[2:7]] == ["-"] * 5
    latency = report.load_figure("m", [alive, dead]).axes[1].lines[0].get_ydata()
    assert (latency[0], math.isnan(latency[1])) == (80.0, True)


def test_a_busy_client_is_named() -> None:
    assert summary([], LoadPlan(), client_cores=0.97).client_limited
    assert not summary([], LoadPlan(), client_cores=0.4).client_limited


def test_deck_repeats_and_spoils() -> None:
    drawn = deck([GOOD, RequestBody(b"two")])
    assert [next(drawn).data for _ in range(3)] == [b"good", b"two", b"good"]
    assert [body.data for body in bad_bodies(GOOD)][:3] == [b"go", b"this is no input", b""]
    assert all(body.bad for body in bad_bodies(GOOD))
    assert [body for body in bad_bodies(GOOD) if body not in bad_http_bodies(GOOD)] == bad_bodies(GOOD)[-2:]
    assert {next(deck([GOOD], poison=1.0, seed=seed)) for seed in range(50)} == set(bad_http_bodies(GOOD))


def test_records_are_repeated_with_their_own_ids() -> None:
    body = RequestBody(
        json.dumps({"payload": {"fromLang": "ja", "records": [{"id": "x", "text": "a"}, {"id": "y", "text": "b"}]}}).encode()
    )
    records = json.loads(with_records(body, 5).data)["payload"]["records"]
    assert [record["id"] for record in records] == ["0", "1", "2", "3", "4"]
    assert [record["text"] for record in records] == ["a", "b", "a", "b", "a"]
    with pytest.raises(SlotwiseError):
        with_records(GOOD, 3)


@pytest.mark.parametrize("tool", ["wrk", "ab"])
def test_other_tools_measure_the_same_loop(tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    seen: set[tuple[bytes, str, str]] = set()

    def look(body: bytes, headers: Mapping[str, str]) -> Answer:
        seen.add((body, headers["content-type"], headers.get("authorization", "")))
        return answer(body, headers)

    with standin(look) as url:
        plan = LoadPlan(clients=4, seconds=3.0, warm_up_s=0.0)
        token = "Bearer abc" if tool == "wrk" else ""  # ab would show it in the list of processes
        target = Target(url, {"authorization": token} if token else {})
        got = load_tools.measure(tool, target, [GOOD, RequestBody(b"bad", "image/png")], plan)
        with pytest.raises(SlotwiseError, match="poison"):
            load_tools.measure(tool, target, [GOOD], replace(plan, poison=0.1))
    assert got.req_s > 0
    assert got.p50_ms <= got.p99_ms <= got.max_ms
    assert (b"good", "text/plain", token) in seen
    if tool == "wrk":
        assert (b"bad", "image/png", "Bearer abc") in seen
        assert got.errors["400"] > 0  # measured again: wrk says "not 2xx"
        assert max(got.latencies_ms) == got.max_ms
    else:
        assert got.errors == {}


def test_what_a_tool_saw_fail_stays_in_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = '{"requests": 1000, "us": 1000000, "status": 40, "connection": 2, "timeout": 0, "p": [1, 1, 1, 1], "max": 1}'
    wrk = tmp_path / "wrk"
    wrk.write_text(f"#!/bin/sh\necho 'SLOTWISE {counts}'\n", "utf-8")
    wrk.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    plan = LoadPlan(2, 0.2, warm_up_s=0)
    with standin(answer) as url:
        got = load_tools.measure("wrk", Target(url, {}), [GOOD], plan)
        once = load_tools.once("wrk", Target(url, {}), [GOOD], plan)
    assert (got.errors, got.lost) == ({"not 2xx": 40, "connection": 2}, 42)
    assert got.requests == 1000 + len(got.latencies_ms)
    assert (once.errors, once.requests, once.req_s) == (got.errors, 1000, 960)


def test_a_tool_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SlotwiseError, match="wrk is not installed"):
        load_tools.measure("wrk", Target("http://127.0.0.1:9/", {}), [GOOD], LoadPlan())
