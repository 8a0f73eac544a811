"""The host without a server: what it says where it cannot answer. Whole batches are in test_child.py."""

from __future__ import annotations

import functools
import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from slotwise.worker import Headers, Request
from slotwise.worker.guard.bare import Bare
from slotwise.worker.guard.batches import Guard
from slotwise.worker.guard.intermediate import Intermediate
from slotwise.worker.guard.local_guard import LocalGuard, _answer
from slotwise.worker.guard.once import Once
from slotwise.worker.guard.stand_in import StandInContext, StandInSlot
from slotwise.worker.guard.stand_in_metrics import StandInMetrics
from slotwise.worker.hosts import frames
from slotwise.worker.hosts.local import LocalHost, answerer
from slotwise.worker.hosts.messages import VERSION, Message, read_message
from tests.worker import strangers
from tests.worker.strangers import guard


def said(host: LocalHost, head: dict[str, Any]) -> Any:
    reply = read_message(io.BytesIO(host.answer(Message({"id": 4, **head}, []))), "answers")
    assert reply is not None
    assert reply.id == 4
    return reply.head["error"]


def test_a_host_that_asks_too_early_or_speaks_otherwise_is_told_so() -> None:
    assert said(LocalHost(), {"requests": []}) == "ValueError: not started"
    other = said(LocalHost(), {"start": {"batch_size": 1}, "version": VERSION + 1})
    assert other == f"ValueError: this worker speaks version {VERSION} of the messages, its host {VERSION + 1}"


def test_a_handler_that_needs_a_server_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "MAR-INF").mkdir()
    (tmp_path / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": {"handler": "needs_a_server.py"}}))
    (tmp_path / "needs_a_server.py").write_text("def handle(data, context):\n    return data\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match=r"needs_a_server\.py has no `handle = \.\.\.\.entry_point\(\)`: only a server can run it"
    ):
        answerer(tmp_path, 8)


def test_a_form_without_a_field_body_reaches_a_strangers_handler(tmp_path: Path) -> None:
    (tmp_path / "MAR-INF").mkdir()
    (tmp_path / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": {"modelName": "theirs"}}))
    guarded = LocalGuard(guard(lambda data, context: [row["name"] for row in data]), StandInContext(tmp_path, 8), None)
    form = b'--x\r\ncontent-disposition: form-data; name="name"\r\n\r\nseven\r\n--x--'
    headers = Headers({"content-type": "multipart/form-data; boundary=x"})
    (answer,) = guarded.run([Request(form, headers, "a")]).answers
    assert (answer.status, answer.body) == (200, b"seven")


@pytest.mark.parametrize("set_by", ["the host", "theirs"])
def test_what_is_not_to_be_decoded_reaches_a_strangers_handler_as_it_came(
    set_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchServe's worker looks at the variable for each request, and many handlers set it when they are imported."""
    monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", "false" if set_by == "the host" else "true")
    context = StandInContext(tmp_path, 8, {"model": {}})
    guarded = LocalGuard(guard(lambda data, context: [json.loads(bytes(row["body"])) for row in data]), context, None)
    if set_by == "theirs":
        monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", "false")
    kinds = ("application/json", "text/plain", "image/png")
    answers = guarded.run([Request(b'{"a": 1}', Headers({"content-type": kind}), "a") for kind in kinds]).answers
    assert [(answer.status, json.loads(answer.body)) for answer in answers] == [(200, {"a": 1})] * 3


class Keeps:
    """What a stranger writes who trusts that ids are the server's: state by the request's id, first come."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def __call__(self, data: Any, context: Any) -> list[str]:
        for i, row in enumerate(data):
            if row["body"] == b"bad":
                raise ValueError
            self.kept.setdefault(context.get_request_id(i), f"{context.get_request_header(i, 'x-request-id')} {row['body']}")
        return [self.kept[context.get_request_id(i)] for i in range(len(data))]


HOSTS = {
    "whole": Guard,
    "bare": Bare,
    "once": functools.partial(Once, pieces=Intermediate()),
    "steps": functools.partial(Once, pieces=Intermediate(), steps=True),
}


@pytest.mark.parametrize("kind", HOSTS)
def test_clients_that_send_one_id_share_nothing_and_the_log_has_that_id(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = StandInContext(tmp_path, 8, {"model": {}})
    guarded = LocalGuard(HOSTS[kind](Keeps(), context.metrics), context, None)
    batches = [[b"a", b"b"], [b"c", b"bad"], [b"d"]]
    headers = Headers({"x-request-id": "mine"})
    with caplog.at_level(logging.INFO):
        answers = [a.body.decode() for b in batches for a in guarded.run([Request(one, headers, "mine") for one in b]).answers]
    good = [f"mine bytearray(b'{x}')" for x in "abcd"]
    assert [answer for answer in answers if answer.startswith("mine")] == (good if kind != "bare" else good[:2] + good[3:])
    assert "request mine: " in caplog.text


def test_who_takes_the_metrics_away_loses_none_and_has_them_again_in_the_next_batch(tmp_path: Path) -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        context.metrics.add_counter("seen", len(data))
        context.metrics = None
        return [1] * len(data)

    context = StandInContext(tmp_path, 8, {"model": {}})
    guarded = LocalGuard(Guard(theirs, context.metrics), context, None)
    for _ in range(2):
        assert [answer.status for answer in guarded.run([Request(b"a"), Request(b"b")]).answers] == [200, 200]
        assert guarded.take_metrics() == [["seen", 2.0, "", None]]
        assert context.metrics is guarded.metrics


def test_theirs_knows_what_its_model_is_registered_as(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = {"model": {"modelName": "in its manifest"}}
    assert StandInContext(tmp_path, 8, manifest).model_name == "in its manifest"
    monkeypatch.setenv("SLOTWISE_REGISTERED_AS", "here")
    assert StandInContext(tmp_path, 8, manifest).model_name == "here"


def test_theirs_finds_what_it_looks_for_within_torchserves_context(tmp_path: Path) -> None:
    """Handlers use `context._system_properties` and the like: what TorchServe's own context has, ours has by the same name."""
    theirs, ours = strangers.context("torchserve", [{"a": "b"}]), StandInContext(tmp_path, 8, {"model": {}})
    ours.request_processor = [StandInSlot({"a": "b"})]
    assert vars(theirs).keys() <= vars(ours).keys()
    assert vars(theirs.request_processor[0]).keys() <= vars(ours.request_processor[0]).keys()
    assert ours._system_properties["model_dir"] == ours.system_properties["model_dir"] == str(tmp_path)
    assert ours._request_processor[0].get_request_property("a") == "b"


def test_a_header_that_is_set_in_two_spellings_is_sent_once() -> None:
    slot = StandInSlot({})
    for name, value in (("content-type", "text/csv"), ("X-A", "1"), ("x-b", "3"), ("x-a", "2")):
        slot.add_response_property(name, value)
    answer = _answer(slot, b"")
    assert (answer.content_type, dict(answer.headers)) == ("text/csv", {"x-a": "2", "x-b": "3"})


def test_of_a_strangers_numbers_only_those_that_are_numbers_are_taken() -> None:
    metrics = StandInMetrics()
    metrics.add_time("time", 2, unit="s")
    for value in ("much", None, float("nan"), float("inf"), 10**400):
        metrics.add_metric("odd", value)
    metrics.add_counter("count", 3)
    assert [number[:2] for number in metrics.values] == [["time", 2.0], ["count", 3.0]]


def test_of_a_strangers_sizes_the_last_one_holds_and_a_type_that_is_named_holds() -> None:
    metrics = StandInMetrics()
    metrics.add_size("mb", 5)
    metrics.add_size("gb", 5, None, "GB")
    metrics.add_size("sum", 5, metric_type="counter")
    metrics.add_metric("now", 5, "rows", None, [], "gauge")
    metrics.add_metric_to_cache("cached", "rows", ["Level"], "gauge").add_or_update(5, ["Model"])
    metrics.add_time("total", 5, metric_type="counter")
    metrics.add_metric("rows", 5, "rows")
    metrics.add_metric("spent", 5, "ms")
    metrics.add_time("s", 5, None, "s")
    metrics.add_percent("share", 5)
    metrics.add_percent("shares", 5, None, [], "counter")
    assert {name: unit for name, _, unit, _ in metrics.values} == {
        **{"mb": "MB", "gb": "GB", "sum": "", "now": "rows", "cached": "rows", "total": "", "rows": "", "spent": ""},
        **{"s": "s", "share": "%", "shares": ""},
    }


def test_a_strangers_status_and_headers_are_sent_as_torchserve_sends_them() -> None:
    def answered(status: int, value: str) -> tuple[int, bytes]:
        slot = StandInSlot({})
        slot.report_status(status)
        slot.add_response_property("x-a", value)
        return frames.answer_about(frames.of_answer(1, _answer(slot, b"")).text)

    for status, value, sent in ((299, "é", b"\xe9"), (520, "a\tb", b"a\tb"), (418, "кот", b"???")):
        assert answered(status, value) == (status, [(b"x-a", sent)])
    assert answered(700, "a")[0] == 500
