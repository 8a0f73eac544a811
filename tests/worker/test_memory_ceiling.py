"""How many rows at once are believed to fit, and when more are tried."""

from __future__ import annotations

from slotwise.worker.memory_ceiling import LONGEST_RETRY_S, RETRY_AFTER_S, MemoryCeiling
from slotwise.worker.padding import Padding


def test_what_one_group_shows_of_memory() -> None:
    now = [1000.0]

    def after(*learned: tuple[int, int | None, bool], rows: int = 16) -> MemoryCeiling:
        ceiling = MemoryCeiling(Padding("static", rows), lambda: now[0])
        for largest, too_many, alone in learned:
            ceiling.learn(largest, too_many, alone, lambda: "")
        return ceiling

    assert (after().rows, after().retry_at, after().retry_after_s) == (16, 0.0, RETRY_AFTER_S)
    assert after((4, 8, False)).rows == 4
    assert after((2, 16, False)).rows == 8, "a guilty row cut the pieces smaller than memory did"
    assert after((0, 8, False)).rows == 16, "nothing ran"
    assert after((4, 8, True)).rows == 16, "a row did not fit even alone"
    assert after((16, None, False)).rows == 16
    fell = after((4, 8, False))
    assert (fell.retry_at, fell.retry_after_s) == (1060.0, 60.0)
    failed = after((4, 8, False), (4, 8, False))
    assert (failed.rows, failed.retry_at, failed.retry_after_s) == (4, 1120.0, 120.0), "a trial that failed"
    failed = after((4, 8, False), *[(4, 8, False)] * 9)
    assert failed.retry_after_s == LONGEST_RETRY_S
    failed.learn(2, 4, False, lambda: "")
    assert (failed.rows, failed.retry_after_s, failed.retry_at) == (2, 60.0, 1060.0), "less fits than did"
    grew = after((2, 4, False), (4, None, False))
    assert (grew.rows, grew.retry_at) == (4, 1060.0)
    same = after((2, 4, False))
    now[0] = 1001.0
    same.learn(2, None, False, lambda: "")
    assert (same.rows, same.retry_at) == (2, 1060.0)


def test_a_size_above_the_ceiling_is_tried_when_it_is_time_and_somebody_needs_it() -> None:
    now = [1000.0]
    ceiling = MemoryCeiling(Padding("static", 16), lambda: now[0])
    assert [ceiling.limit(rows) for rows in (1, 16, 99)] == [16, 16, 16]
    ceiling.lower(16)
    assert (ceiling.rows, ceiling.retry_at) == (8, 1060.0)
    ceiling.lower(8)
    assert [ceiling.limit(rows) for rows in (1, 4, 5, 16)] == [4, 4, 4, 4]
    now[0] = 1059.9
    assert ceiling.limit(16) == 4
    now[0] = 1060.0
    assert [ceiling.limit(rows) for rows in (1, 4, 5, 16, 99)] == [4, 4, 8, 8, 8]
