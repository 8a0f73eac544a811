"""A guard around strangers' handlers: whatever they do to a batch, every other request gets what it gets alone."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ts.metrics import caching_metric
from ts.utils.util import PredictionException

from slotwise.worker import Headers, Request
from slotwise.worker.guard import batches, device, guarded_handler
from slotwise.worker.guard.bare import Bare
from slotwise.worker.guard.guarded_handler import GuardedHandler
from slotwise.worker.guard.held_metrics import HeldMetrics, metrics_of
from slotwise.worker.guard.intermediate import Intermediate
from slotwise.worker.guard.local_guard import LocalGuard
from slotwise.worker.guard.once import Once
from slotwise.worker.guard.stand_in import StandInContext
from slotwise.worker.hosts.java.unreadable import Unreadable, row
from tests.worker.strangers import Slot, ask, context, guard

KINDS = ("torchserve", "mms")
GOOD = [json.dumps([i]).encode() for i in range(8)]


def doubler(data: Any, context: Any) -> list[Any]:
    """What a stranger writes: one bad body, and all are lost."""
    return [{"doubled": json.loads(row["body"])[0] * 2} for row in data]


def poisoned(places: set[int], bad: Any = b"not JSON", n: int = 8) -> list[Any]:
    return [bad if i in places else GOOD[i] for i in range(n)]


@pytest.mark.parametrize("kind", KINDS)
def test_good_ones_get_what_they_get_alone_wherever_the_bad_ones_are(kind: str) -> None:
    guarded = guard(doubler)
    alone = [ask(guarded, [body], kind)[0] for body in GOOD]
    for places in [{i} for i in range(8)] + [set(range(n)) for n in range(9)] + [{1, 4, 6}, {0, 7}]:
        slots = ask(guarded, poisoned(places), kind)
        assert [slots[i] for i in range(8) if i not in places] == [alone[i] for i in range(8) if i not in places]
        assert {slots[i].status for i in places} <= {400}


class Remembers:
    """As many write it: what `preprocess` leaves on `self` is for `postprocess`, which clears it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.now = {"size": 0}
        self.model: Any = None

    def handle(self, data: Any, context: Any) -> list[Any]:
        if self.model is None:
            self.model = object()
        self.late = getattr(self, "late", [])
        for one in data:
            self.bodies.append(one["body"])
            self.late.append(one["body"])
        self.now["size"] = len(self.bodies)
        doubled = doubler(data, context)
        answers = [
            {**one, "of": json.loads(body), "late": json.loads(late)}
            for one, body, late in zip(doubled, self.bodies, self.late, strict=False)
        ]
        self.bodies, self.late = [], []
        return answers


KEEPER = Remembers()


def by_module(data: Any, context: Any) -> list[Any]:
    return KEEPER.handle(data, context)


class Envelope:
    def __init__(self, handle: Any) -> None:
        self._handler = handle

    def handle(self, data: Any, context: Any) -> list[Any]:
        return list(self._handler(data, context))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["object", "module", "envelope"])
def test_what_it_has_left_when_it_failed_is_in_nobodys_answer(kind: str, way: str) -> None:
    """Its second try is with others: what the first one has kept of the bad one's mates would be theirs."""
    keeper = KEEPER if way == "module" else Remembers()
    handle = by_module if way == "module" else Envelope(keeper.handle).handle if way == "envelope" else keeper.handle
    guarded = guard(handle)
    for places in [{i} for i in range(8)] + [{1, 4, 6}, {0, 7}, set()]:
        for i, slot in enumerate(ask(guarded, poisoned(places), kind)):
            wanted = {"doubled": i * 2, "of": [i], "late": [i]}
            assert slot.status == 400 if i in places else slot.value == wanted


SEEN: list[bytes] = []


class Scatters:
    """It keeps what it was given where many keep it by mistake: in its class, its module, the context."""

    bodies: list[bytes] = []  # noqa: RUF012  as they write it

    def handle(self, data: Any, context: Any) -> list[Any]:
        context.kept = getattr(context, "kept", [])
        for kept in (self.bodies, SEEN, context.kept):
            kept += [one["body"] for one in data]
        answers = [
            [json.loads(one["body"])[0], *(json.loads(kept[i][:3])[0] for kept in (self.bodies, SEEN, context.kept))]
            for i, one in enumerate(data)
        ]
        for kept in (self.bodies, SEEN, context.kept):
            kept.clear()
        return answers


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_has_left_in_its_class_its_module_and_the_context_is_in_nobodys_answer(kind: str) -> None:
    guarded = guard(Scatters().handle)
    for places in [{i} for i in range(8)] + [{1, 4, 6}, {0, 7}, set()]:
        for i, slot in enumerate(ask(guarded, poisoned(places, b"[9] and more"), kind)):
            assert slot.status == 400 if i in places else slot.value == [i] * 4


class Notes:
    """Its answers have one dict in common, so it is asked again, for one request at a time."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def handle(self, data: Any, context: Any) -> list[Any]:
        about, before = {"model": "it"}, len(self.seen)
        self.seen += [one["body"] for one in data]
        return [{"before": before, "about": about} for _ in data]


def test_of_a_try_whose_answers_cannot_be_told_apart_nothing_is_left() -> None:
    notes = Notes()
    assert [slot.value["before"] for slot in ask(guard(notes.handle), GOOD[:3])] == [0, 1, 2]
    assert notes.seen == GOOD[:3]


def test_a_batch_without_faults_goes_to_theirs_whole_and_once() -> None:
    calls: list[int] = []

    def theirs(data: Any, context: Any) -> list[Any]:
        calls.append(len(data))
        return doubler(data, context)

    ask(guard(theirs), GOOD)
    assert calls == [8]


def raising(error: Any) -> Any:
    """A handler that raises this where any body is b"bad"."""

    def theirs(data: Any, context: Any) -> list[Any]:
        if any(row.get("body") == b"bad" for row in data):
            raise error() if callable(error) else error
        return doubler(data, context)

    return theirs


class Odd(BaseException):
    """No Exception."""


class OwnInputError(Exception):
    """A stranger's own."""


class Unprintable(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError


class Odder(Exception):
    """An error that cannot be looked at."""

    @property
    def message(self) -> str:
        sys.exit(3)


Odder.__name__ = "PredictionException"


def recursive() -> BaseException:
    try:
        return recursive()
    except RecursionError as error:
        return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("/secret/path"), 500),
        (SystemExit(3), 500),
        (GeneratorExit(), 500),
        (Odd("/secret"), 500),
        (Unprintable(), 500),
        (Odder("bad"), 500),
        (KeyError(np.array([1, 2])), 500),
        (KeyError(["body"]), 500),
        (recursive, 500),
        (StopIteration(), 500),
        (KeyError("body"), 400),
        (KeyError("data"), 400),
        (KeyError("label"), 500),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), 400),
        (json.JSONDecodeError("x", "y", 0), 400),
        (OwnInputError("x"), 400),
        (PredictionException("send three numbers", 422), 422),
        (PredictionException("a code of theirs", 513), 513),
        (PredictionException("no error at all", 200), 500),
        (MemoryError(), 507),
        (RuntimeError("CUDA out of memory. Tried to allocate"), 507),
    ],
)
def test_what_the_guilty_get(error: Any, status: int) -> None:
    guarded = guard(raising(error), bad_input=["tests.worker.test_guard.OwnInputError"])
    slots = ask(guarded, poisoned({2}, b"bad"))
    assert [slot.status for slot in slots] == [200, 200, status, 200, 200, 200, 200, 200]
    said = slots[2].value["error"]
    assert said["code"] == status
    assert "secret" not in said["message"]
    assert slots[2].headers == {"content-type": "application/json"}
    if status == 422:
        assert said["message"] == "send three numbers"
    once = Once(raising(error), HeldMetrics(), ["tests.worker.test_guard.OwnInputError"], pieces=Intermediate())
    assert [slot.status for slot in ask(once, poisoned({2}, b"bad"))] == [200, 200, status, 200, 200, 200, 200, 200]


def test_a_request_without_a_body_is_its_senders_fault() -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        return [len(row.get("data") or row.get("body")) for row in data]

    slots = ask(guard(theirs), [b"a", {}, {"other": b"x"}, {"body": 3}])
    assert [slot.status for slot in slots] == [200, 400, 400, 500]


def test_pillow_tells_of_bad_input() -> None:
    import io

    from PIL import Image

    whole = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(whole, "JPEG")

    def theirs(data: Any, context: Any) -> list[Any]:
        pictures = [Image.open(io.BytesIO(row["body"])) for row in data]
        return [list(picture.resize((2, 2)).size) for picture in pictures]

    slots = ask(guard(theirs), [whole.getvalue(), b"no picture", whole.getvalue()[:600], b""])
    assert [slot.status for slot in slots] == [200, 400, 400, 400]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda answers: answers[:-1],
        lambda answers: [*answers, 1],
        lambda answers: tuple(answers),
        lambda answers: (answer for answer in answers),
        lambda answers: None,
        lambda answers: "x" * len(answers),
        lambda answers: dict(enumerate(answers)),
    ],
)
def test_anything_but_a_list_of_the_right_length_is_isolated(wrong: Any) -> None:
    def theirs(data: Any, context: Any) -> Any:
        answers = [row["body"] for row in data]
        return wrong(answers) if b"bad" in answers else answers

    slots = ask(guard(theirs), poisoned({5}, b"bad"))
    assert [slot.status for slot in slots] == [200] * 5 + [500] + [200] * 2
    assert [slot.body for i, slot in enumerate(slots) if i != 5] == [body for i, body in enumerate(GOOD) if i != 5]


def test_a_retry_gets_the_rows_as_they_came() -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        answers = []
        for fields in data:
            body = fields.pop("body")
            if isinstance(body, bytearray):
                body += b"!"
            elif isinstance(body, dict):
                body["list"].append(1)
            answers.append({"body": bytes(body).decode() if isinstance(body, bytearray) else body, "rest": len(fields)})
            context.get_all_request_header(0).clear()
        if any(answer["body"] == "bad!" for answer in answers):
            raise ValueError
        return answers

    slots = ask(guard(theirs), [bytearray(b"a"), {"body": {"list": [0]}, "more": "x"}, bytearray(b"bad"), {"body": "text"}])
    assert [slot.value for i, slot in enumerate(slots) if i != 2] == [
        {"body": "a!", "rest": 0},
        {"body": {"list": [0, 1]}, "rest": 1},
        {"body": "text", "rest": 0},
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_what_theirs_set_survives_for_good_slots_and_is_undone_where_it_failed(kind: str) -> None:
    class Theirs:
        kept: Any = None

        def handle(self, data: Any, context: Any) -> list[Any]:
            assert context is self.kept
            context.set_all_response_status(202, "Accepted")
            for i, fields in enumerate(data):
                self.kept.set_response_header(i, "x-id", context.get_request_id(i))
                self.kept.set_response_header(i, "x-sent", context.get_request_header(i, "x-own"))
                context.set_response_content_type(i, "text/plain")
                if fields["body"] == b"bad":
                    context.set_response_status(299, "Spoiled", i)
                    raise ValueError
            return [b"plain"] * len(data)

    theirs = Theirs()
    raw = theirs.kept = context(kind, [{"x-own": str(i)} for i in range(8)])
    slots = ask(guard(theirs.handle), poisoned({0, 3}, b"bad"), kind, raw=raw)
    for i, slot in enumerate(slots):
        if i in (0, 3):
            assert (slot.status, slot.headers) == (500, {"content-type": "application/json"})
        else:
            assert slot == Slot(202, b"plain", {"x-id": f"id-{i}", "x-sent": str(i), "content-type": "text/plain"})


@pytest.mark.parametrize(
    "result", [object(), float, {1: {2}}, "\ud800", recursive, type("Own", (dict,), {"items": lambda self: 1 / 0})(a=1)]
)
def test_a_result_that_cannot_be_serialised_fails_alone(result: Any) -> None:
    itself: list[Any] = []
    itself.append(itself)
    for odd in (result, itself):
        slots = ask(
            guard(lambda data, context, odd=odd: [odd if row["body"] == b"bad" else 1 for row in data]), [b"", b"bad", b""]
        )
        assert [slot.status for slot in slots] == [200, 500, 200]


def test_results_are_the_bytes_that_the_server_would_send() -> None:
    import torch
    from ts.protocol.otf_message_handler import create_predict_response

    results = [{"a": [1, float("nan")]}, "größe", b"\x00", bytearray(b"x"), None, 3, torch.ones(2), torch.eye(2).to_sparse()]
    raw = context("torchserve", [{}] * len(results))
    rows = [{"body": i} for i in range(len(results))]
    bodies = guard(lambda data, context: [results[row["body"]] for row in data]).answer(rows, raw)
    assert all(isinstance(body, bytes | bytearray) for body in bodies)
    plain = create_predict_response(results, raw.request_ids, "ok", 200, context("torchserve", [{}] * len(results)))
    assert create_predict_response(bodies, raw.request_ids, "ok", 200, context("torchserve", [{}] * len(results))) == plain
    assert ask(guard(lambda data, context: [torch.ones(2)], tensors=False), [b""], "mms")[0].status == 500


@pytest.mark.parametrize(
    "spoil",
    [
        lambda context, i: context.set_response_header(i, "x-a", "a\r\nb"),
        lambda context, i: context.set_response_header(i, "x a", "b"),
        lambda context, i: context.set_response_content_type(i, "text/größe"),
        lambda context, i: context.set_response_status(99_999, "", i),
        lambda context, i: context.set_response_status("200", "", i),
        lambda context, i: context.set_response_status(200, "größe", i),
    ],
)
def test_a_status_or_header_that_would_spoil_the_message_is_that_slots_500(spoil: Any) -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        for i, fields in enumerate(data):
            context.set_response_header(i, "x-number", 3)
            if fields["body"] == b"bad":
                spoil(context, i)
        return [1] * len(data)

    slots = ask(guard(theirs), [b"", b"bad", b""])
    assert [slot.status for slot in slots] == [200, 500, 200]
    assert slots[0].headers == {"x-number": "3"}


def test_out_of_memory_halves_and_the_size_that_fits_is_remembered() -> None:
    calls: list[int] = []

    def theirs(data: Any, context: Any) -> list[Any]:
        calls.append(len(data))
        if len(data) > 3:
            raise MemoryError
        return doubler(data, context)

    guarded = guard(theirs)
    assert [slot.value["doubled"] for slot in ask(guarded, GOOD)] == [0, 2, 4, 6, 8, 10, 12, 14]
    calls.clear()
    ask(guarded, GOOD)
    assert max(calls) <= 3


def test_what_is_undecided_when_time_is_up_is_503() -> None:
    now = [0.0]

    def theirs(data: Any, context: Any) -> list[Any]:
        now[0] += 10.0
        return doubler(data, context)

    guarded = guard(theirs, response_timeout_s=60.0, clock=lambda: now[0])
    slots = ask(guarded, poisoned({0}))
    assert {slot.status for slot in slots[:4]} <= {400, 503}
    assert [slot.status for slot in slots[4:]] == [503] * 4
    assert now[0] <= 40.0


def test_a_handler_that_answers_only_one_is_asked_one_at_a_time() -> None:
    calls: list[int] = []

    def theirs(data: Any, context: Any) -> list[Any]:
        calls.append(len(data))
        assert len(data) == 1
        return [data[0]["body"]]

    now = [0.0]
    guarded = guard(theirs, clock=lambda: now[0])
    for _ in range(batches.SINGLY_AFTER):
        assert [slot.body for slot in ask(guarded, GOOD)] == GOOD
    calls.clear()
    assert [slot.body for slot in ask(guarded, GOOD)] == GOOD
    assert calls == [1] * 8
    now[0] += batches.SINGLY_S
    calls.clear()
    assert [slot.body for slot in ask(guarded, GOOD)] == GOOD
    assert calls[0] == 8, "after a while it is tried again"
    calls.clear()
    assert [slot.body for slot in ask(guarded, GOOD)] == GOOD
    assert calls == [1] * 8, "once"


def parts_of_the_first(data: Any, context: Any) -> list[Any]:
    return [{"part": part} for part in json.loads(data[0]["body"])]


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_answers_as_requests_may_all_be_one_requests(kind: str) -> None:
    """A batch of eight is given four answers: so a half of it that is given four has none of its own."""
    for place in range(8):
        slots = ask(guard(parts_of_the_first), poisoned({place}, b"[7, 7, 7, 7]"), kind)
        assert [slot.status for slot in slots] == [500 if i == place else 200 for i in range(8)]
        assert [slot.value for i, slot in enumerate(slots) if i != place] == [{"part": i} for i in range(8) if i != place]


def test_who_gives_another_number_of_answers_gets_one_request_at_a_time_for_good() -> None:
    """As soon as that is seen: the first of a later batch may be bad, and a half of it may get as many answers as requests."""
    guarded = guard(parts_of_the_first)
    assert {slot.status for slot in ask(guarded, [GOOD[0], b"bad", GOOD[1]])} == {200, 400}
    slots = ask(guarded, [b"bad", b"bad", b"[9, 9]", GOOD[3]])
    assert [slot.status for slot in slots] == [400, 400, 500, 200]
    assert slots[3].value == {"part": 3}


def one_error(data: Any, context: Any) -> list[Any]:
    try:
        return doubler(data, context)
    except ValueError:
        context.set_response_status(415, "Unsupported Media Type")
        return ["what is that?"]


def one_error_in_words(data: Any, context: Any) -> list[Any]:
    try:
        return doubler(data, context)
    except ValueError as error:
        return [{"error": str(error)}]


@pytest.mark.parametrize("theirs", [one_error, one_error_in_words, lambda data, context: []])
def test_who_gives_all_of_a_batch_one_error_or_nothing_still_gets_batches(theirs: Any) -> None:
    guarded = guard(theirs)
    alone = [ask(guarded, [body])[0] for body in poisoned({2})]
    for _ in range(batches.SINGLY_AFTER):
        assert ask(guarded, poisoned({2})) == alone
    assert guarded.together


def test_who_leaves_out_the_bad_ones_still_gets_batches() -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        return [{"number": json.loads(one["body"])[0]} for one in data if one["body"] != b"bad"]

    guarded = guard(theirs)
    for places in [{3}, {0, 5}, set(range(8))]:
        slots = ask(guarded, poisoned(places, b"bad"))
        assert [slot.status for slot in slots] == [500 if i in places else 200 for i in range(8)]
        assert [slot.value for i, slot in enumerate(slots) if i not in places] == [
            {"number": i} for i in range(8) if i not in places
        ]
        assert guarded.together


def test_explanations_do_not_make_the_others_explanations() -> None:
    def theirs(data: Any, context: Any) -> list[Any]:  # as TorchServe's BaseHandler: it looks at slot 0 only
        return [{"explained": context.get_request_header(0, "explain") == "True"} for _ in data]

    headers = [{"explain": str(i == 0)} for i in range(4)]
    slots = ask(guard(theirs), [b""] * 4, headers=headers)
    assert [slot.value["explained"] for slot in slots] == [True, False, False, False]


def test_a_body_that_mms_cannot_decode_is_refused_without_theirs() -> None:
    headers = {"body": {"content-type": "application/json"}, "x-own": "1"}
    assert row({"body": b"[1]"}, headers, "mms") == {"body": [1]}
    assert row({"body": b"no"}, headers, "torchserve") == {"body": b"no"}
    assert row({"body": b"no", "other": b"x"}, {}, "mms") == {"body": b"no", "other": b"x"}
    unreadable = row({"body": b"no"}, headers, "mms")
    assert isinstance(unreadable["body"], Unreadable)
    slots = ask(guard(doubler), [GOOD[0], unreadable, GOOD[2]])
    assert [slot.status for slot in slots] == [200, 400, 200]


def test_an_answer_that_is_too_long_is_that_slots_500() -> None:
    slots = ask(guard(lambda data, context: [row["body"] for row in data], max_response_bytes=10), [b"short", b"x" * 11])
    assert [slot.status for slot in slots] == [200, 500]


def test_a_dead_device_ends_the_worker_after_this_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "device_alive", lambda: False)
    guarded = guard(raising(RuntimeError("CUDA error: device-side assert triggered")))
    assert {slot.status for slot in ask(guarded, poisoned({1}, b"bad"))} == {503}
    assert guarded.dead


def test_the_handler_around_it_decodes_what_its_server_leaves_and_ends_the_worker_of_a_dead_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "guard.json").write_text("{}")
    around = GuardedHandler(tmp_path / "guard.json")
    around.server, around.decodes, around.guard = "mms", True, guard(lambda data, context: [row["body"][0] for row in data])
    ends: list[str] = []
    monkeypatch.setattr(guarded_handler, "end_after_this_answer", ends.append)
    raw = context("mms", [{"body": {"content-type": "application/json"}}] * 2)
    assert [json.loads(body) for body in around.handle([{"body": b"[7]"}, {"body": b"[8]"}], raw)] == [7, 8]
    assert ends == []
    around.guard.dead = True
    assert len(around.handle([{"body": b"[7]"}, {"body": b"[8]"}], raw)) == 2
    assert ends == ["mms"]


@pytest.mark.parametrize(("terms", "audited"), [({}, True), ({"bare": True}, False), ({"once": "pieces"}, False)])
def test_only_who_may_be_asked_twice_is_audited(
    terms: dict[str, Any], audited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "MAR-INF").mkdir()
    (tmp_path / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": {}}))
    (tmp_path / "guard.json").write_text(json.dumps({"handler": "theirs.py", "audit": 1.0, **terms}))
    monkeypatch.setattr(guarded_handler.digests, "verify", lambda *_, **named: {})
    monkeypatch.setattr(guarded_handler, "before_every_read", lambda *_: None)
    monkeypatch.setattr(Intermediate, "install", lambda self: None)
    monkeypatch.setattr(guarded_handler.theirs, "start", lambda *_: lambda data, context: [1] * len(data))
    around = GuardedHandler(tmp_path / "guard.json").without_server(tmp_path, 8)
    assert (around.audit is not None) is audited


def test_a_call_that_goes_well_the_second_time_is_nobodys_fault() -> None:
    calls: list[int] = []

    def theirs(data: Any, context: Any) -> list[Any]:
        calls.append(len(data))
        if len(calls) == 1:
            raise ConnectionError
        return doubler(data, context)

    assert {slot.status for slot in ask(guard(theirs), GOOD)} == {200}


def test_torchserves_metrics_of_a_failed_attempt_are_not_printed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching_metric.CachingMetric, "emit_metrics", caching_metric.CachingMetric.emit_metrics)

    def theirs(data: Any, context: Any) -> list[Any]:
        context.metrics.add_counter("Asked", len(data))
        for i, fields in enumerate(data):
            context.metrics.add_time("Each", 1.0, i)
            if fields["body"] == b"bad":
                raise ValueError
        context.metrics = None
        return [1] * len(data)

    raw = context("torchserve", [{}] * 4)
    with caplog.at_level(logging.INFO):
        ask(guard(theirs, held=metrics_of(raw, "torchserve")), [b"", b"", b"bad", b""], raw=raw)
    lines = [record.getMessage() for record in caplog.records if "[METRICS]" in record.getMessage()]
    assert [line.rpartition(",id")[2] for line in lines if "Each" in line] == ["-0", "-1", "-3"]
    assert sum(int(line.split(":")[1].split("|")[0]) for line in lines if "Asked" in line) == 3
    assert raw.metrics.request_ids == {i: f"id-{i}" for i in range(4)}


def test_mms_metrics_of_a_failed_attempt_are_not_kept() -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        for i, fields in enumerate(data):
            context.metrics.add_counter("Each", 1, i)
            context.metrics.add_counter("All", 1)
            if fields["body"] == b"bad":
                raise ValueError
        return [1] * len(data)

    raw = context("mms", [{}] * 4)
    store = raw.metrics
    ask(guard(theirs, held=metrics_of(raw, "mms")), [b"", b"", b"bad", b""], "mms", raw=raw)
    assert raw.metrics is store
    assert sorted(metric.request_id for metric in store.store if metric.name == "Each") == ["id-0", "id-1", "id-3"]
    assert sum(metric.value for metric in store.store if metric.name == "All") == 3


def fails(data: Any) -> None:
    if any(row["body"] == b"bad" for row in data):
        raise ValueError


def test_mms_gets_numbers_and_texts_and_no_object_of_theirs() -> None:
    class Odd:
        def __init__(self) -> None:
            self.number = 2.5

        def __float__(self) -> float:
            return self.number

        def __str__(self) -> str:
            return "odd"

    odd = Odd()

    def theirs(data: Any, context: Any) -> list[Any]:
        context.metrics.add_metric("Odd", odd, unit="count")
        context.metrics.add_error("Why", f"of {len(data)}")  # it has no request's id, and the last one holds, as on MMS
        fails(data)
        return [1] * len(data)

    raw = context("mms", [{}] * 4)
    ask(guard(theirs, held=metrics_of(raw, "mms")), [b"", b"", b"", b"bad"], "mms", raw=raw)
    odd.number = 99.0
    kept = sorted((metric.name, metric.value) for metric in raw.metrics.store)
    assert kept == [("Odd", 2.5), ("Odd", 2.5), ("Why", "of 1")], "of the first two, and of the third"
    empty = context("mms", [{}])
    store = empty.metrics
    unreadable = row({"body": b"no"}, {"body": {"content-type": "application/json"}}, "mms")
    assert ask(guard(theirs, held=metrics_of(empty, "mms")), [unreadable], "mms", raw=empty)[0].status == 400
    assert empty.metrics is store, "theirs was not asked"


def test_a_keyboard_interrupt_is_the_operators() -> None:
    with pytest.raises(KeyboardInterrupt):
        ask(guard(raising(KeyboardInterrupt())), poisoned({1}, b"bad"))


def test_nothing_of_theirs_is_held_between_the_attempts() -> None:
    import gc
    import weakref

    class Tensor:
        pass

    seen: list[Any] = []
    alive: list[int] = []

    def theirs(data: Any, context: Any) -> list[Any]:
        gc.collect()
        alive.append(sum(ref() is not None for ref in seen))
        big = Tensor()
        seen.append(weakref.ref(big))
        if len(data) > 1:
            raise MemoryError
        return [1]

    ask(guard(theirs), GOOD)
    assert set(alive) == {0}
    assert sys.getrecursionlimit() > 100


def bare(theirs: Any) -> Bare:
    return Bare(theirs, HeldMetrics())


def test_bare_theirs_is_asked_once_and_what_fails_fails_as_a_whole() -> None:
    calls: list[int] = []

    def theirs(data: Any, context: Any) -> list[Any]:
        calls.append(len(data))
        return doubler(data, context)

    assert [slot.value for slot in ask(bare(theirs), GOOD[:3])] == [{"doubled": 2 * i} for i in range(3)]
    for slot in ask(bare(theirs), poisoned({1}, n=3)):
        assert (slot.status, slot.value["error"]["message"]) == (503, "Prediction failed")
    for wrong in (lambda data, context: [], lambda data, context: sys.exit(3)):
        assert [slot.status for slot in ask(bare(wrong), GOOD[:2])] == [503, 503]
    assert calls == [3, 3], "a handler that keeps something between requests cannot be asked twice"


def test_bare_one_object_may_be_everybodys_answer() -> None:
    for same in ({"ok": True}, ["a"]):
        slots = ask(bare(lambda data, context, same=same: [same] * len(data)), GOOD)
        assert [(slot.status, slot.value) for slot in slots] == [(200, same)] * 8


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (PredictionException("no such user", 404), 404, "no such user"),
        (MemoryError(), 507, "Out of resources"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), 507, "Out of resources"),
        (ValueError("secret"), 503, "Prediction failed"),
    ],
)
def test_bare_a_batch_fails_with_what_theirs_says(error: Exception, status: int, message: str) -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        raise error

    for slot in ask(bare(theirs), GOOD[:2]):
        assert (slot.status, slot.value["error"]["message"]) == (status, message)


def test_bare_a_coroutine_is_awaited() -> None:
    async def theirs(data: Any, context: Any) -> list[Any]:
        await asyncio.sleep(0)
        return doubler(data, context)

    assert [slot.value for slot in ask(bare(theirs), GOOD[:2])] == [{"doubled": 0}, {"doubled": 2}]


def test_bare_what_cannot_be_decoded_is_its_senders_alone_and_theirs_never_sees_it() -> None:
    calls: list[int] = []

    def theirs(data: Any, context: Any) -> list[Any]:
        calls.append(len(data))
        return doubler(data, context)

    slots = ask(bare(theirs), [GOOD[3], Unreadable(), GOOD[4]])
    assert [slot.status for slot in slots] == [200, 400, 200]
    assert (slots[0].value, slots[2].value) == ({"doubled": 6}, {"doubled": 8})
    assert [slot.status for slot in ask(bare(theirs), [Unreadable()])] == [400]
    assert calls == [2]


class Gpu:
    """Stands in for torch on a machine with a GPU, which raises `error` where something is computed, and to free memory."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.freed = error, 0
        self.cuda = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, empty_cache=self.fails)

    def zeros(self, size: int, device: str) -> Any:
        assert device == "cuda"
        return SimpleNamespace(item=self.fails)

    def fails(self) -> None:
        self.freed += 1
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("error", "alive"),
    [
        (None, True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
    ],
)
def test_a_gpu_is_dead_where_it_computes_nothing_and_not_where_it_is_full(
    error: Exception | None, alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(error)
    monkeypatch.setitem(sys.modules, "torch", gpu)
    assert device.device_alive() is alive
    device.release()  # raises nothing: a dead one frees nothing
    assert gpu.freed == 2
    gpu.cuda.is_initialized = lambda: False  # theirs computes elsewhere: a context would take half a gigabyte
    assert device.device_alive()
    device.release()
    assert gpu.freed == 2


def test_the_statuses_of_all_are_set_where_there_is_no_server_too(tmp_path: Path) -> None:
    (tmp_path / "MAR-INF").mkdir()
    (tmp_path / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": {"modelName": "theirs"}}))

    def theirs(data: Any, context: Any) -> list[Any]:
        context.set_all_response_status(202, "Accepted")
        context.set_response_status(None, None, 0)  # type: ignore[arg-type]  # TorchServe then says 200
        return doubler(data, context)

    local = LocalGuard(guard(theirs), StandInContext(tmp_path, 8), None)
    answers = local.run([Request(body, Headers({"x-batch-request-id": str(i)}), str(i)) for i, body in enumerate(GOOD[:3])])
    assert [answer.status for answer in answers.answers] == [200, 202, 202]
    assert [answer.headers["x-batch-request-id"] for answer in answers.answers] == ["0", "1", "2"]
    assert [json.loads(answer.body)["doubled"] for answer in answers.answers] == [0, 2, 4]


def test_errors_that_are_each_others_context_are_let_go() -> None:
    first, second = ValueError(), ValueError()
    first.__context__, second.__context__ = second, first
    device.let_go(first)
