"""What the figures of a crowd and of adversaries make of what they measured."""

from __future__ import annotations

import time
import zlib

import pytest

from benchmarks.measuring.adversaries import KEPT_S, TARGET_MS, Judged, back_s
from benchmarks.measuring.fairness import verdict
from benchmarks.measuring.priced import Priced, Row
from benchmarks.pages.crowds import adversaries, fairness

LATE_S = 2 * TARGET_MS / 1000


def test_a_crowd_may_cost_half_as_much_again_and_a_full_batch() -> None:
    one = {"p50_ms": 8.0, "p99_ms": 10.0, "many_lost": 0, "full_batch_ms": 30.0}
    rounds = [{"alone": one, "beside": {**one, "p99_ms": p99_ms}} for p99_ms in (44.0, 45.0, 99.0)]
    found = verdict(rounds)
    assert (found["allowed_ms"], found["beside_p99_ms"], found["held"]) == (45.0, 45.0, True)
    assert not verdict([{**each, "beside": {**each["beside"], "full_batch_ms": 29.0}} for each in rounds])["held"]
    row = {"model": "m", "batch_size": 16, **found}
    assert "| m | 16 | 30 | 8 | 10 | 8 | 45 | 45 | yes | 0 |" in fairness({"fairness": {"rows": [row]}})


def test_the_target_is_kept_from_the_last_late_answer_on() -> None:
    def judged(late_until: float, until: float) -> list[Judged]:
        times = [i / 10 for i in range(int(until * 10))]
        return [Judged(at, LATE_S if at < late_until else 0.01, "right") for at in times]

    assert back_s(judged(0, 20), 0, 20) == 0
    assert back_s(judged(3, 20), 0, 20) == 2.9
    assert back_s(judged(3, 20), 0, 2.9 + KEPT_S - 0.1) is None
    assert back_s([Judged(1, LATE_S, "poisoned"), Judged(2, 0.01, "right")], 0, 20) == 0
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
