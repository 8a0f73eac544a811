"""What is sent: an answer checks itself, a refusal cannot fail, and headers are found in any case."""

from __future__ import annotations

import dataclasses
import json
import traceback
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.worker import BadRequest, Headers, ModelFault, Request, SlotError, TooLarge
from slotwise.worker.answer import Answer, CheckedHeaders, Refusal, checked, header_text, json_safe, refusal, serialise, sound


def test_headers_are_found_in_any_case() -> None:
    headers = Headers({"Content-Encoding": "gzip", "X-One": "1", "x-number": 7})
    assert (headers["content-encoding"], headers["CONTENT-ENCODING"], headers.encoding) == ("gzip", "gzip", "gzip")
    assert (headers.get("X-ONE"), headers.get("x-two"), headers.get("x-two", "none")) == ("1", None, "none")
    assert (list(headers), len(headers)) == (["content-encoding", "x-one"], 2)
    assert "X-One" in headers
    assert "x-number" not in headers, "it is no text"
    assert 7 not in headers  # type: ignore[comparison-overlap]
    with pytest.raises(KeyError):
        headers["x-two"]
    for empty in (Headers(), Headers(None), Headers({})):
        assert (dict(empty), empty.encoding) == ({}, "")
    assert Request(b"a", more=(b"b", b"c")).bodies == [b"a", b"b", b"c"]
    assert Request(b"a").bodies == [b"a"]


def test_the_slots_number_is_added_to_a_copy() -> None:
    shared = checked({"x-a": "1"})
    assert shared.with_slot(3, "r-1.2_x") == {"x-a": "1", "x-batch-slot": "3", "x-batch-request-id": "r-1.2_x"}
    assert type(shared.with_slot(3, "r")) is CheckedHeaders
    for strange in ("", "a b", "a\r\nx: y", "\xe4", "x" * 129):
        assert shared.with_slot(3, strange) == {"x-a": "1", "x-batch-slot": "3"}
    assert shared == {"x-a": "1"}


def test_headers_are_checked() -> None:
    assert checked(None) == {}
    given = {
        "X-Number": 7,
        "X-Café"[:5]: "é",
        "Content-Length": "9",
        "TS_STREAM_NEXT": "x",
        "content-type": "x",
        "connection": 1,
    }
    assert checked(given) == {"X-Number": "7", "X-Caf": "?"}
    assert checked(MappingProxyType({"a": "b"})) == {"a": "b"}
    assert type(checked({"a": "b"})) is CheckedHeaders
    for raw, why in (
        (7, "the handler's response headers are not a mapping"),
        ([("a", "b")], "the handler's response headers are not a mapping"),
        ({"a b": "c"}, "the name of a response header holds a character that is not allowed there"),
        ({"": "c"}, "the name of a response header holds a character that is not allowed there"),
        ({"a\n": "c"}, "the name of a response header holds a character that is not allowed there"),
        ({"a": "b\r\nc"}, "a response header holds a line break"),
        ({"a": "b\x00"}, "a response header holds a line break"),
    ):
        with pytest.raises(ModelFault) as caught:
            checked(raw)
        assert caught.value.message == why
    assert header_text("a b") == "a b"


def test_an_answer_checks_itself() -> None:
    answer = Answer(200, "text/plain", b"x", {"x-a": 1})  # type: ignore[dict-item]
    assert (answer.status, answer.content_type, answer.headers, answer.phrase) == (200, "text/plain", {"x-a": "1"}, "OK")
    assert type(answer.headers) is CheckedHeaders
    headers = CheckedHeaders({"a": "b"})
    assert Answer(200, "text/plain", b"x", headers).headers is headers
    assert Answer(200, None, b"x", headers).content_type == "application/json"  # type: ignore[arg-type]
    assert Answer(200, "é", b"x", headers).content_type == "?"
    assert [Answer(status, "a", b"", headers).status for status in (204, 418, 499, 599, 999)] == [204, 418, 400, 500, 500]
    assert Answer(400, "a", b"", headers).phrase == "Bad Request"
    for body in ("x", bytearray(b"x"), None):
        with pytest.raises(ModelFault) as caught:
            Answer(200, "a", body, headers)  # type: ignore[arg-type]
        assert caught.value.message == "the answer's body is not bytes"
    with pytest.raises(ModelFault):
        Answer(200, "a\n", b"", headers)


def test_a_refusal_is_the_error_written_down() -> None:
    headers = CheckedHeaders({"a": "b"})
    error = TooLarge("too much")
    written = Refusal.of(error)
    assert (written.status, written.message) == (413, "too much")
    assert written.body == b'{"error": {"code": 413, "message": "too much"}}'
    assert written.answer(headers) == refusal(error, headers) == Answer(413, "application/json", written.body, headers)
    again = written.error()
    assert type(again) is TooLarge
    assert again is not error
    assert written.error() is not again


def test_an_error_that_changed_since_is_given_as_it_was_written() -> None:
    for change in ({"message": "other"}, {"code": 400}, {"code": "x"}):
        error = TooLarge("too much")
        written = Refusal.of(error)
        vars(error).update(change)
        again = written.error()
        assert type(again) is SlotError
        assert (again.message, again.code) == ("too much", 413)


def test_an_error_that_cannot_be_copied_is_given_as_a_plain_one() -> None:
    error = BadRequest("why")
    error.open = (x for x in [0])  # type: ignore[attr-defined]
    again = Refusal.of(error).error()
    assert type(again) is SlotError
    assert (again.message, again.code) == ("why", 400)


class Own(SlotError):
    code = 422

    def __init__(self, said: Any) -> None:
        super().__init__("own")
        self.said = said

    def body(self) -> dict[str, Any]:
        return {"error": self.said}


class Silent(SlotError):
    """Nobody can ask what it is."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("message", "code") and "ready" in super().__getattribute__("__dict__"):
            raise RuntimeError
        return super().__getattribute__(name)


def test_an_error_that_can_be_sent_stays_itself_and_forgets_its_frames() -> None:
    for kind in (BadRequest("why"), Own({"a": 1})):
        try:
            try:
                raise KeyError
            except KeyError as cause:
                raise kind from cause
        except SlotError as caught:
            error = caught
        assert sound(error) is error
        assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)
        assert len(traceback.format_exception(error)) == 1


def test_an_error_that_cannot_be_sent_becomes_a_plain_one_with_its_status() -> None:
    odd = BadRequest("why")
    odd.code = 399
    numbered = BadRequest("why")
    numbered.message = 7  # type: ignore[assignment]
    silent = Silent("x")
    vars(silent)["ready"] = True
    for error, code, message in (
        (Own(object()), 422, "own"),
        (odd, 500, "why"),
        (numbered, 400, "7"),
        (silent, 500, "the handler failed"),
    ):
        plain = sound(error)
        assert plain is not error
        assert type(plain) is SlotError
        assert (plain.code, plain.message) == (code, message)


def test_an_error_that_keeps_its_frames_is_sent_all_the_same() -> None:
    class Stubborn(SlotError):
        def __setattr__(self, name: str, value: Any) -> None:
            if name.startswith("__"):
                raise RuntimeError
            super().__setattr__(name, value)

    error = Stubborn("why")
    assert sound(error) is error


def test_a_body_becomes_bytes() -> None:
    class Octets(bytes):
        pass

    assert serialise(b"\xff") == b"\xff"
    assert type(serialise(Octets(b"a"))) is bytes
    assert serialise("é") == "é".encode()
    assert serialise("\ud800") == rb"\ud800"
    assert serialise({"é": [1, None]}) == '{"é": [1, null]}'.encode()
    for wrong in (float("nan"), [float("inf")]):
        with pytest.raises(ValueError):
            serialise(wrong)
    with pytest.raises(TypeError):
        serialise(object())


def test_a_result_that_is_not_json_is_refused_in_its_place() -> None:
    result, refused = {"a": 1}, Refusal.of(BadRequest("why"))
    assert json_safe(result) is result
    assert json_safe(refused) is refused
    written = json_safe(object())
    assert isinstance(written, Refusal)
    assert (written.status, written.message) == (500, "the model's output could not be encoded")


def test_answers_and_refusals_do_not_change() -> None:
    for fixed in (Refusal.of(BadRequest("why")), Answer(200, "a", b"", CheckedHeaders())):
        with pytest.raises(dataclasses.FrozenInstanceError):
            fixed.status = 1  # type: ignore[misc]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_what_is_written_is_json(value: Any) -> None:
    if not isinstance(value, str):
        assert serialise(value) == json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")


def test_what_contains_itself_and_what_json_has_no_form_for_is_not_written() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises((ValueError, RecursionError)):
        serialise(circle)
    with pytest.raises(ValueError, match="not JSON compliant"):
        serialise({"score": float("nan")})
    with pytest.raises(TypeError):
        serialise({"score": object()})
