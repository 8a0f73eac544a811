"""Answers whose first pieces are timed: their texts, what is no answer, and the tables that are made of them."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.measuring.rounds import Readings
from benchmarks.measuring.timed_answers import PieceReading, Timed, loaded, rows, text_of
from benchmarks.pages.streams import TABLES
from slotwise.errors import SlotwiseError

EVENTS = b'data: {"text": "a "}\n\ndata: {"text": "b"}\n\n'
END = b'event: end\ndata: {"pieces": 2}\n\n'


def test_the_text_is_the_same_whole_and_in_events() -> None:
    for whole in (b'{"caption": "a b"}', b'{"result": [{"id": "1", "text": "a b"}]}'):
        assert text_of(whole, whole=True) == text_of(EVENTS + END, whole=False) == "a b"


@pytest.mark.parametrize(("body", "whole"), [(EVENTS, False), (b'{"result": [{"id": "1", "error": {}}]}', True)])
def test_what_breaks_off_or_is_refused_is_no_answer(body: bytes, whole: bool) -> None:
    with pytest.raises(SlotwiseError):
        text_of(body, whole=whole)


def test_a_load_counts_what_fails_apart() -> None:
    answers = iter([Timed(0.003, 0.004, "a"), SlotwiseError("cut off"), Timed(0.003, 0.004, "a")])

    async def ask() -> Timed:
        answer = next(answers, Timed(0.003, 0.004, "a"))
        await asyncio.sleep(0.02)
        if isinstance(answer, SlotwiseError):
            raise answer
        return answer

    reading = loaded(ask, 1, 0.5)
    assert (reading.failed, reading.first_p50_ms, reading.p50_ms) == (1, 3.0, 4.0)


def test_the_tables_have_a_line_a_system() -> None:
    def reading(rps: float) -> PieceReading:
        return PieceReading(rps, 4.0, 8.0, 0, first_p50_ms=2.0, first_p99_ms=1000 / rps)

    readings: Readings = {("captions (GIT)", 8): {"closed": [reading(50)], "steps": [reading(100)]}}
    table = TABLES["decoded.rows"]({"decoded": {"rows": rows(readings)}})
    assert "| captions (GIT) | 8 | steps | 100 | 100 | 2 (2 to 2) | 2 | 10 | 4 | 8 | 0.5 (0.5 to 0.5) | 0 |" in table
    found = {"rows": rows({("streams", 8): {"alone": [reading(100)], "beside": [reading(95)]}}, "alone")}
    found |= {"left": {"open": 0.0}, "memory_mib": {"before": 100.0, "after": 101.0}, "cut_off": 50.0}
    table = TABLES["dropped.rows"]({"dropped": found})
    assert "| streams | 8 | beside | 95 | 95 | 0.95 (0.95 to 0.95) |" in table
    assert table.endswith(
        "Open when all was over: 0. Memory of host and worker: 100 MiB before, 101 MiB after; 50 readers cut off."
    )
