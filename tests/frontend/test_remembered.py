"""The requests that a front remembers: bounded, found by id, counted by model, and printed for people."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from slotwise.backends.request_way import sent_together
from slotwise.console import out
from slotwise.frontend.http.client_address import TrustedProxies
from slotwise.frontend.observing.observer import Observer
from slotwise.frontend.observing.printed import top_table, trace_lines
from slotwise.frontend.observing.remembered import Remembered, as_json
from slotwise.frontend.observing.seen_request import SeenRequest
from tests.support.observed import observed


def request(identity: str, status: int = 200, model: str = "digits", reason: str = "") -> SeenRequest:
    seen = SeenRequest("POST")
    seen.date()
    seen.path, seen.address = f"/predictions/{model}", "127.0.0.1"
    seen.identity, seen.status, seen.model, seen.reason, seen.seconds = identity, status, model, reason, 0.25
    return seen


def test_the_oldest_are_forgotten_by_number_and_by_bytes() -> None:
    by_number, by_bytes = Remembered(10), Remembered(1000, most_bytes=50_000)
    for kept in (by_number, by_bytes):
        for i in range(100):
            kept.ended(request(f"r-{i}"))
        assert kept.find("r-0") is None
        assert kept.find("r-99") is not None
    assert len(by_number) == 10
    assert len(by_bytes) < 20
    assert by_bytes.bytes <= 50_000


def test_what_is_for_no_model_is_remembered_only_where_it_failed() -> None:
    kept = Remembered(10)
    assert not kept.keeps(request("probe", model=""))
    assert kept.keeps(request("lost", 404, model=""))


def test_a_record_is_found_in_its_request() -> None:
    kept, whole = Remembered(10), request("r")
    whole.record("r-0")
    kept.ended(whole)
    assert kept.find("r-0") is whole


def test_what_has_ended_goes_without_the_garbage_collector() -> None:
    """Each knows its batch, and that knows each: also a request that still runs holds on to nobody who has ended."""
    gc.disable()
    try:
        for kept in (None, Remembered(1)):
            observer = Observer(TrustedProxies(), dict, [] if kept is None else [kept], kept)
            scopes: list[dict[str, Any]] = [{"headers": []} for _ in range(3)]
            ways = [observer.begin(scope) for scope in scopes]
            batch = sent_together("w", [observed(way) for way in ways])
            for way in ways:
                way.model = "digits"
            gone = [weakref.ref(way) for way in ways[:2]]
            for scope in scopes:
                observer.end(scope, 200)
            del ways, way, batch, scopes, scope
            assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


def test_the_last_seconds_by_model_and_cause() -> None:
    kept = Remembered(100)
    for i in range(9):
        kept.ended(request(f"r-{i}"))
    kept.ended(request("bad", 429, reason="the queue of this model is full, try again later"))
    numbers = kept.numbers()["models"]["digits"]
    assert (numbers["p50_ms"], numbers["errors"]) == (250.0, {"429 the queue of this model is full, try again later": 1})
    model: dict[str, Any] = {
        "name": "digits",
        "version": "1",
        "ready_workers": 1,
        "workers": 1,
        "in_flight": 0,
        "in_flight_max": 8,
    }
    model |= {"queued": 0, "queue_max": 4, "batch_size": 8}
    console = out()
    with console.capture() as printed:
        console.print(top_table({"models": [model], "ready": True, "draining": False, "last": kept.numbers()}))
    assert "429 the queue" in printed.get()
    assert "250" in printed.get()


def test_a_ways_lines_are_in_the_order_of_time() -> None:
    seen, mate = request("r-1", 500, reason="the worker ended on this request"), request("r-2")
    first = sent_together("w-0", [observed(mate), observed(seen)])
    assert first is not None
    first.fail("the worker ended")
    seen.note("its worker ended")
    sent_together("w-1", [observed(seen)])
    lines = trace_lines(as_json(seen))
    text = "\n".join(lines)
    assert "slot 1 of 2, with one other" in text
    assert "of w-1: slot 0 of 1, alone" in text
    assert lines[-1].endswith("answered 500: the worker ended on this request")
    assert text.index("of w-0") < text.index("its worker ended") < text.index("of w-1")
