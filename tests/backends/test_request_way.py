"""What is noted of a request's way: bounded, and what a worker says of a batch is believed only where it is a report."""

from __future__ import annotations

import json
import math
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.backends.exchange import BackendRequest
from slotwise.backends.request_way import LONGEST_REPORT, MOST_NOTES, MOST_TRIES, BatchReport, RequestWay, sent_together
from slotwise.worker.environment.settings import Settings
from slotwise.worker.hosts import frames
from slotwise.worker.reports.batch_report import watched
from slotwise.worker.request import Request
from tests.support.observed import observed
from tests.worker.toy import POISON, Toy, begin

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
NAMES = ("began", "decode_ms", "inference_ms", "total_ms", "rows", "padding", "cuts", "engine", "precision", "calls")
GOOD: dict[str, Any] = {
    **dict.fromkeys(NAMES, 1.0),
    "engine": "numpy",
    "precision": "fp32",
    "calls": [[0.5, 1.5, 3, 4, [0, 1, 2], "ValueError"]],
}


def test_a_report_is_read() -> None:
    report = BatchReport.read(json.dumps(GOOD).encode())
    (call,) = report.calls
    assert (call.rows, call.size, call.slots, call.error, report.engine) == (3, 4, (0, 1, 2), "ValueError", "numpy")


@given(name=st.sampled_from(NAMES), value=JSON)
def test_whatever_stands_in_a_report_it_is_numbers_or_no_report(name: str, value: Any) -> None:
    try:
        report = BatchReport.read(json.dumps({**GOOD, name: value}).encode())
    except ValueError:
        return
    called = [number for call in report.calls for number in (call.at_ms, call.rows)]
    numbers = [report.began, report.total_ms, report.rows, *called]
    assert all(math.isfinite(number) for number in numbers)
    assert len(report.engine) <= 80


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 100_000, b"x" * (LONGEST_REPORT + 1), b'{"calls": 3}'])
def test_what_is_no_report_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="report"):
        BatchReport.read(text)


def test_what_is_kept_of_one_request_is_bounded() -> None:
    way = RequestWay()
    for _ in range(100):
        way.note("again")
        sent_together("w", [observed(way)])
    assert (len(way.notes), len(way.tries)) == (MOST_NOTES, MOST_TRIES)


def test_of_a_batch_that_nobody_watches_nothing_is_made() -> None:
    nobodys = BackendRequest("m", 0.0)
    assert sent_together("w", [nobodys] * 8) is None
    way = RequestWay()
    batch = sent_together("w", [nobodys, observed(way), nobodys])
    assert batch is not None
    assert (batch.size, len(batch.mates), way.tries[0][1]) == (3, 1, 1)


def test_ids_are_drawn_once_and_only_for_who_has_a_trace() -> None:
    one, traced = RequestWay(), RequestWay()
    traced.traced = True
    assert (one.ids, one.trace_word) == ((0, 0), "")
    assert traced.ids == traced.ids != (0, 0)
    assert traced.traceparent == f"00-{traced.trace_word}-{traced.ids[1]:016x}-00"
    other = RequestWay()
    other.trace(traced.ids[0])
    assert (other.trace_word, other.ids[1] == traced.ids[1]) == (traced.trace_word, False)


def test_a_batch_whose_mates_were_asked_for_holds_on_to_none_of_them() -> None:
    ways = [RequestWay() for _ in range(4)]
    for i, way in enumerate(ways):
        way.identity = f"id-{i}"
    batch = sent_together("w", [observed(way) for way in ways])
    assert batch is not None
    gone = weakref.ref(ways[3])
    assert [mate.identity for mate in batch.mates] == ["id-0", "id-1", "id-2", "id-3"]
    del ways[3], way
    assert (gone(), len(batch.mates)) == (None, 4)


def test_a_workers_report_has_each_call_and_nobodys_words() -> None:
    toy = begin(Toy(), Settings(batch_size=8))
    local: Any = SimpleNamespace(pipeline=toy.pipeline, handler=toy, run=toy.pipeline.run)
    bodies = (b"[1]", f"[{POISON}]".encode(), b"secret", b"[2, 3]")
    requests = [Request(body, id=f"id-{i}") for i, body in enumerate(bodies)]
    plain = [(answer.status, answer.body) for answer in toy.pipeline.answer(requests)]
    answered, (frame,) = watched(local, requests)
    assert [(answer.status, answer.body) for answer in answered.answers] == plain
    assert frame.kind == frames.REPORT
    assert b"secret" not in frame.text
    report = BatchReport.read(frame.text)
    assert report.cuts > 0
    assert (report.calls[0].slots, report.calls[0].error) == ((0, 1, 3), "ValueError")
    assert all(call.slots == (1,) or not call.error or 1 in call.slots for call in report.calls)
    assert toy.pipeline.isolation.calls is None
    assert watched(local, requests, always=False)[1]
    assert watched(local, requests[:1], always=False)[1] == []
