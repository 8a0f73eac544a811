"""The audit finds what raises nothing, and nothing where nothing is wrong."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.worker.guard.held_metrics import metrics_of
from slotwise.worker.hosts.java.between_batches import before_every_read, end_after_this_answer
from slotwise.worker.hosts.java.context import ServerContext
from slotwise.worker.separability.audit import AUDITED, MISMATCHES, Audit, AuditedAnswer
from tests.worker.serving import serving_entry
from tests.worker.strangers import ask, context, guard
from tests.worker.toy import RawContext, Toy


def audited(theirs: Any, batches: list[list[bytes]], kind: str = "torchserve") -> Counter[str]:
    """What an audit of everything counts over these batches."""
    found: Counter[str] = Counter()
    raw = context(kind, [{}])
    guarded = guard(theirs, **({"held": metrics_of(raw, kind)} if kind == "mms" else {}))
    audit = guarded.audit_with(1.0, raw, lambda name, value: found.update({name: value}))
    for bodies in batches:
        fresh = context(kind, [{}] * len(bodies))
        raw.request_processor, raw.request_ids, raw.metrics = fresh.request_processor, fresh.request_ids, fresh.metrics
        answers = ask(guarded, bodies, kind, raw=raw)
        before = [raw.get_response_headers(i) for i in range(len(bodies))]
        store = len(raw.metrics.store) if kind == "mms" else 0
        audit.run()
        assert [raw.get_response_headers(i) for i in range(len(bodies))] == before
        assert kind != "mms" or len(raw.metrics.store) == store
        assert len(answers) == len(bodies)
    return found


def shifting(data: Any, context: Any) -> list[Any]:
    """Empty bodies are left out, and their answers come last: everybody behind one gets a neighbour's answer."""
    answers = [{"size": len(row["body"])} for row in data if row["body"]]
    return answers + [{"size": 0}] * (len(data) - len(answers))


class KeepsState:
    """Each answer says something of the batch before."""

    last = 0.0

    def handle(self, data: Any, context: Any) -> list[Any]:
        answers = [{"mean": self.last + len(row["body"])} for row in data]
        self.last += sum(len(row["body"]) for row in data)
        return answers


@pytest.mark.parametrize("kind", ["torchserve", "mms"])
def test_rows_that_shift_and_state_between_batches_are_found(kind: str) -> None:
    batches = [[b"a", b"", b"bbb", b"cccc"], [b"a", b"bb"]]
    assert audited(shifting, batches, kind) == {AUDITED: 6, MISMATCHES: 3}
    assert audited(KeepsState().handle, batches, kind)[MISMATCHES] == 6


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    def right(data: Any, context: Any) -> list[Any]:
        context.metrics.add_counter("Asked", len(data))
        if any(row["body"] == b"bad" for row in data):
            raise ValueError
        answers = [{"size": len(row["body"]), "kernel": 1.0 + 1e-6 * len(data)} for row in data]
        return [object() if row["body"] == b"mute" else answer for row, answer in zip(data, answers, strict=True)]

    assert audited(right, [[b"a", b"bb", b"bad"], [b"a", b"mute"], [b"mute"]], "mms") == {AUDITED: 3}


def test_what_is_answered_among_mates_and_refused_alone_is_a_mismatch() -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        return [b"x"] * len(data) if len(data) > 1 else [b"x", b"too many"]

    assert audited(theirs, [[b"a", b"b"]]) == {AUDITED: 2, MISMATCHES: 2}


def test_a_mismatch_is_logged_without_what_was_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        audited(shifting, [[b"", b"secret"]])
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("audit: request id-0 got 200 sha256 ")
    assert "secret" not in "".join(lines)
    assert "size" not in "".join(lines)


def test_only_the_wished_share_is_asked_again_and_a_failure_costs_nobody_anything() -> None:
    found: Counter[str] = Counter()

    def again(request: int) -> AuditedAnswer:
        raise ValueError

    chances = iter([0.5, 0.009, 0.2, 0.0])
    audit = Audit(0.01, again, lambda name, value: found.update({name: value}), lambda: next(chances))
    audit.keep((str(i), lambda i=i: (i, AuditedAnswer(200, None, b""))) for i in range(4))  # type: ignore[misc]
    assert [identity for identity, *_ in audit.waiting] == ["1", "3"]
    audit.run()
    assert found == {AUDITED: 2}
    audit.run()
    assert found == {AUDITED: 2}


@pytest.mark.parametrize("body", [b"[%d]" % 10**900, b"[" * 400 + b"]" * 400, b'{"label": [], "probabilities": {}}'])
def test_an_answer_that_no_float_holds_and_one_that_is_deep_are_compared(body: bytes) -> None:
    other = AuditedAnswer(200, None, b" " + body)
    assert AuditedAnswer(200, None, body).same(other)


class Incomparable(AuditedAnswer):
    """An answer that cannot be compared."""

    def same(self, other: AuditedAnswer) -> bool:
        raise OverflowError


def test_a_comparison_that_fails_costs_nobody_anything() -> None:
    found: Counter[str] = Counter()
    audit = Audit(1.0, lambda request: AuditedAnswer(200, None, b""), lambda name, value: found.update({name: value}))
    audit.keep([("a", lambda: ("a", Incomparable(200, None, b"1"))), ("b", lambda: ("b", AuditedAnswer(200, None, b"2")))])
    audit.run()
    assert found == {AUDITED: 2, MISMATCHES: 1}


def test_answers_are_compared_with_a_tolerance_for_numbers_only() -> None:
    one = AuditedAnswer(200, "application/json", b'{"a": [0.5, "x"]}')
    assert one.same(AuditedAnswer(200, "application/json", b'{"a": [0.500001, "x"]}'))
    assert not one.same(AuditedAnswer(200, "application/json", b'{"a": [0.5, "y"]}'))
    assert not one.same(AuditedAnswer(201, "application/json", one.body))
    assert not one.same(AuditedAnswer(200, None, one.body))
    assert not AuditedAnswer(200, None, b"\xff").same(AuditedAnswer(200, None, b"\xfe"))


class Leaks(Toy):
    """A BatchHandler whose answers depend on their batch-mates."""

    def predict(self, inputs: Any) -> Any:
        return super().predict(inputs) + len(inputs)


def test_a_request_that_is_answered_among_mates_and_fails_alone_is_a_mismatch() -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        if len(data) == 1:
            raise ValueError("a batch norm, perhaps")
        return [{"sum": len(row["body"])} for row in data]

    assert audited(theirs, [[b"a", b"bb"]]) == {AUDITED: 2, MISMATCHES: 2}


def test_a_batch_handler_is_audited_between_two_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = SimpleNamespace(_retrieve_buffer=lambda conn, length: b"I")
    monkeypatch.setitem(sys.modules, "ts.protocol.otf_message_handler", protocol)
    seen = {}
    for handler in (Toy(), Leaks()):
        entry = serving_entry(handler, audit=1.0)
        raw = entry.worker.audit.count.__self__.raw  # type: ignore[union-attr]
        fresh = RawContext([{}, {}, {}, {"x-deadline-ms": "1"}])  # who came too late is not asked again
        entry.handle([{"body": body} for body in (b"[1]", b"[2]", b"no", b"[3]")], fresh)
        protocol._retrieve_buffer(None, 1)
        seen[type(handler)] = dict(raw.metrics.seen)
    assert (seen[Toy][AUDITED], seen[Toy].get(MISMATCHES)) == (3, None)
    assert (seen[Leaks][AUDITED], seen[Leaks][MISMATCHES]) == (3, 2)


@pytest.mark.parametrize("kind", ["torchserve", "mms"])
def test_a_count_reaches_the_servers_own_metrics(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    context_ = ServerContext(context(kind, [{}]))
    with caplog.at_level(logging.INFO):
        context_.metric_between(MISMATCHES, 2)
    lines = [record.getMessage() for record in caplog.records if MISMATCHES in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(f"[METRICS]{MISMATCHES}.Count:2|")


def test_without_the_servers_module_nothing_is_installed() -> None:
    assert not before_every_read("no_such_server", lambda: None)
    end_after_this_answer("no_such_server")  # says so in the log


def test_where_nothing_can_be_done_between_two_batches_nothing_is_kept_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the requests would pile up for ever."""
    monkeypatch.delitem(sys.modules, "ts.protocol.otf_message_handler", raising=False)
    assert serving_entry(Toy(), audit=1.0).worker.audit is None
