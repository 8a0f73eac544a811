"""The two servers' hosts, on a context made by hand: what reaches the server, and how a worker ends."""

from __future__ import annotations

import logging
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ts.protocol import otf_message_handler

from slotwise.worker.hosts.java.context import ServerContext
from slotwise.worker.hosts.java.torchserve import quieten
from tests.worker.serving import serving_entry
from tests.worker.toy import Doubler, RawContext, Toy


@pytest.mark.parametrize(
    ("error", "line"), [(RuntimeError("no kernel"), "no kernel"), (MemoryError("1 EiB"), "out of memory: 1 EiB")]
)
def test_what_both_servers_hide_of_a_failed_start_becomes_a_valueerror(error: Exception, line: str) -> None:
    class Failing(Toy):
        def load(self, *_: Any) -> Any:
            raise error

    with pytest.raises(ValueError, match=line):
        serving_entry(Failing())


def test_the_ten_line_handler_of_the_docs_works_with_the_defaults(tmp_path: Any) -> None:
    handle = Doubler.entry_point()
    handle(None, RawContext(model_dir=tmp_path))
    raw = RawContext([{}, {}])
    assert handle([{"body": b"1.5"}, {"data": b"x"}], raw) == [
        b"3.0",
        b'{"error": {"code": 400, "message": "the body could not be decoded"}}',
    ]
    assert raw.status == {0: (200, "OK"), 1: (400, "Bad Request")}
    assert raw.sent[0]["content-type"] == "application/json"
    assert all(type(value) is str for headers in raw.sent.values() for value in headers.values())


def test_a_bad_deadline_and_a_question_for_an_explanation_cost_their_senders_only() -> None:
    raw = RawContext([{}, {"x-deadline-ms": "soon"}, {"x-deadline-ms": "inf"}, {"explain": "True"}])
    serving_entry().handle([{"body": b"[1]"}] * 4, raw)
    assert [raw.status[i][0] for i in range(4)] == [200, 400, 400, 501]


def test_a_worker_with_a_dead_engine_ends_instead_of_reading_the_next_message(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = SimpleNamespace(_retrieve_buffer=lambda conn, length: b"I")
    monkeypatch.setitem(sys.modules, "ts.protocol.otf_message_handler", protocol)
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    entry = serving_entry()
    entry.handler.broken = True  # type: ignore[attr-defined]
    before = protocol._retrieve_buffer
    assert b"503" in entry.handle([{"body": b"[1]"}], RawContext([{}]))[0]
    assert ends == [], "the answers have not been written yet"
    assert protocol._retrieve_buffer is not before
    protocol._retrieve_buffer(None, 1)
    assert ends == [1]


def test_metrics_tell_fill_padding_errors_cuts_and_the_authors_own() -> None:
    raw = RawContext([{}] * 3, batch_size=3)
    entry = serving_entry(padding="static")
    entry.handler.metrics.count("tokens", 7)
    entry.handle([{"body": body} for body in (b"[1]", b"[-1]", b"no")], raw)
    seen = raw.metrics.seen
    assert seen["BatchFill"] == 100.0
    assert seen["PaddingShare"] > 0
    assert seen["Bisections"] == 1
    assert seen["SlotErrors"] == 1  # the request that was no request; record errors are in place
    assert seen["tokens"] == 7


def test_gauges_are_sent_as_means_and_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = serving_entry()
    now = [100.0]
    monkeypatch.setattr("slotwise.worker.reports.telemetry.time.monotonic", lambda: now[0])

    def told(*bodies: bytes) -> dict[str, float]:
        raw = RawContext([{}] * len(bodies), batch_size=4)
        entry.handle([{"body": body} for body in bodies], raw)
        return raw.metrics.seen

    gauges = {"BatchFill", "PaddingShare", "DecodeTime", "InferenceTime", "EncodeTime"}
    assert set(told(b"[1]")) == gauges, "the first batch has nothing to wait for"
    assert told(b"[1]", b"[2]", b"[3]", b"[4]") == {}
    assert told(b"[1]", b"[-1]", b"no", b"[2]") == {"Bisections": 2, "SlotErrors": 1}
    now[0] += 0.2
    assert (later := told(b"[1]")).keys() == gauges
    assert later["BatchFill"] == 75


def test_of_what_torchserve_says_of_every_batch_only_a_gauge_now_and_then_is_kept(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = RawContext([{}])
    heard: list[tuple[str, float]] = []
    raw.metrics.add_time = lambda name, value: heard.append((name, value))  # type: ignore[method-assign]
    monkeypatch.setattr(otf_message_handler, "logging", logging)  # whose `info` says so for every batch
    quieten(ServerContext(raw))
    with caplog.at_level(logging.INFO):
        for value in range(3):
            otf_message_handler.logging.info("Backend received inference at: %d", 1)
            raw.metrics.add_time("PredictionTime", value)
            raw.metrics.add_time("DecodeTime", value)
        logging.info("anything else")
    assert heard == [("PredictionTime", 0), *(("DecodeTime", value) for value in range(3))]
    assert caplog.messages == ["anything else"]
    raw.metrics = None  # type: ignore[assignment]  # as a context in a test has it
    monkeypatch.delitem(sys.modules, "ts.protocol.otf_message_handler")
    quieten(ServerContext(raw))
    ServerContext(raw).metric("DecodeTime", 1.0, "ms")


@pytest.mark.parametrize("own", [{}, None, 1])
def test_metrics_that_an_author_has_replaced_cost_no_answer(own: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Replaces(Toy):
        def load(self, *given: Any) -> Any:
            self.metrics = own  # type: ignore[misc]
            return super().load(*given)

    entry = serving_entry(Replaces())
    for _ in range(2):
        raw = RawContext([{}])
        assert entry.handle([{"body": b"[1]"}], raw) == [b"[3.0]"]
    assert [record.getMessage() for record in caplog.records].count("a batch could not be measured") == 1


def test_metrics_that_the_server_refuses_cost_no_answer() -> None:
    class Refusing(RawContext):
        @property
        def metrics(self) -> Any:
            raise_ = type("M", (), {"add_time": lambda *a, **k: 1 / 0})
            return raise_()

        @metrics.setter
        def metrics(self, value: Any) -> None: ...

    assert serving_entry().handle([{"body": b"[1]"}], Refusing([{}])) == [b"[3.0]"]


def test_an_empty_batch_is_answered_with_nothing() -> None:
    assert serving_entry().handle([], RawContext()) == []
