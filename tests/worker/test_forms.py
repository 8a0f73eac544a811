"""A form's body is taken apart as the servers' front ends do it, and nothing in it raises anything but a refusal."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.frontend.admission.form_fields import sent_as
from slotwise.worker.guard import local_guard
from slotwise.worker.hosts import forms, reading
from slotwise.worker.hosts.forms import RepeatedParts
from slotwise.worker.request import Headers, Request
from slotwise.worker.slot_errors import SlotError, TooLarge


def received(body: bytes, content_type: str = "multipart/form-data; boundary=b", **query: str) -> Request:
    return Request(body, Headers({"content-type": content_type}), "id", query=query)


def sent(files: list[tuple[str, bytes]]) -> Request:
    """What httpx sends for these files."""
    request = httpx.Request("POST", "http://x", files=[(name, ("f", content, "image/png")) for name, content in files])
    return received(request.read(), request.headers["content-type"])


@given(st.lists(st.tuples(st.sampled_from(["data", "body", "a b", "\u00e9"]), st.binary(max_size=200)), min_size=1, max_size=5))
def test_what_a_real_client_sends_is_what_the_row_has(files: list[tuple[str, bytes]]) -> None:
    row = forms.row(sent(files))
    wanted: dict[str, list[bytes]] = {}
    for name, content in files:
        wanted.setdefault(name, []).append(content)
    assert list(map(len, wanted.values())) == [len(v) if isinstance(v, RepeatedParts) else 1 for v in row.values()]
    assert [v if isinstance(v, RepeatedParts) else [v] for v in row.values()] == list(wanted.values())


@given(st.binary(max_size=300), st.text(max_size=60))
def test_no_body_raises_anything_but_a_refusal(body: bytes, boundary: str) -> None:
    for content_type in (f"multipart/form-data; boundary={boundary}", "multipart/form-data; boundary=b", boundary):
        for one in (body, b"--b\r\n" + body + b"\r\n--b--", b"--b\r\nContent-Disposition: " + body + b"\r\n\r\n1\r\n--b--"):
            parsed = reading.parsed(received(one, content_type))
            assert parsed.refused is None or isinstance(parsed.refused, SlotError)


@pytest.mark.parametrize(
    "boundary",
    ["boundary*" + "9" * 5000 + "=x", "boundary*=utf-8''%ff", "boundary*=none'x'y", "boundary*0*=%"],
)
def test_a_boundary_that_cannot_be_read_is_refused(boundary: str) -> None:
    """What Python's email package raises on some of these cost the whole batch its answers."""
    error = reading.parsed(received(b"--b--", f"multipart/form-data; {boundary}")).refused
    assert error is not None
    assert error.code == 400


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 400),
        (b"--b--", 400),
        (b"--b\r\n\r\n--b--", 400),
        (b'--b\r\nContent-Disposition: form-data; name="data"\r\n\r\ncut off', 400),
        (b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * 300 + b"\r\n--b--", 413),
        (b"--b\r\nContent-Disposition: form-data; name=" + b"a" * 9000 + b"\r\n\r\n1\r\n--b--", 400),
    ],
)
def test_a_form_that_cannot_be_read_is_refused(body: bytes, code: int) -> None:
    parsed = reading.parsed(received(body))
    error = parsed.refused or parsed.unclear
    assert error is not None
    assert error.code == code


def test_without_a_form_the_body_is_the_body_and_the_address_has_parameters() -> None:
    parsed = reading.parsed(received(b"--b--", "image/png", top="3"))
    assert (parsed.body, dict(parsed.query), parsed.id) == (b"--b--", {"top": "3"}, "id")


URL_FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize("charset", ["utf-8", "latin-1"])
def test_no_two_fields_become_one_whatever_the_letters_of_their_names(charset: str) -> None:
    names = ["ä", "ö", "größe", "à", "size"]
    parts = [f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{i}\r\n' for i, name in enumerate(names)]
    body = "".join([*parts, "--b--"]).encode(charset)
    request = Request(body, Headers({"content-type": "multipart/form-data; boundary=b"}))
    assert forms.row(request) == {name: b"%d" % i for i, name in enumerate(names)}


@pytest.mark.parametrize("body", [b"data=the fish was tasty", b"data=the+fish", b"E=mc2 is tasty", b"text=a&text=b", b"data="])
def test_a_form_of_a_browser_is_refused_and_never_read_with_its_names(body: bytes) -> None:
    parsed = reading.parsed(received(body, URL_FORM, top="3"))
    error = parsed.refused or parsed.unclear
    assert error is not None
    assert (error.code, parsed.body) == (415, b"")


def test_nothing_in_the_address_stands_for_a_body_or_for_a_part() -> None:
    form = sent([("image", b"one"), ("image", b"two")])
    asked = Request(form.body, form.headers, "id", query={"data": "x", "body": "y", "top": "3"})
    parsed = reading.parsed(asked)
    assert (parsed.body, list(parsed.more), list(parsed.fields)) == (b"one", [b"two"], ["image"])
    assert parsed.query == {"data": "x", "body": "y", "top": "3"}
    raw = reading.parsed(Request(b"raw", Headers({"content-type": "image/png"}), "id", query={"body": "y", "data": "x"}))
    assert (raw.body, raw.query) == (b"raw", {"body": "y", "data": "x"})


@pytest.mark.parametrize("body", [b"body=the fish was tasty", b"body=the+fish+was+tasty&top=3"])
def test_its_field_body_is_the_body(body: bytes) -> None:
    assert reading.parsed(received(body, URL_FORM)).body == b"the fish was tasty"


@pytest.mark.parametrize(
    "body",
    [b"\x89PNG=1", b'{"a": "b=c"}', b"the fish was tasty", b"a: b=c", b"name=\n1", b"[a]=1", b"20", b"a+b&c"],
)
def test_what_curl_sends_as_a_form_and_is_none_is_the_body(body: bytes) -> None:
    parsed = reading.parsed(received(body, URL_FORM, top="3"))
    assert (parsed.body, dict(parsed.query), parsed.refused, parsed.unclear) == (body, {"top": "3"}, None, None)


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"ids[]=1&ids[]=2", {"ids[]": b"2"}),
        (b"user[name]=a&user[age]=3", {"user[name]": b"a", "user[age]": b"3"}),
    ],
)
def test_a_forms_names_may_have_brackets(body: bytes, fields: dict[str, bytes]) -> None:
    assert local_guard._row(Request(body, Headers({"content-type": URL_FORM}), "id")) == fields
    assert sent_as(URL_FORM, body, 10) == URL_FORM


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"data=one+two&more=3", {"data": b"one two", "more": b"3"}),
        (b"data=%C3%A9", {"data": "\u00e9".encode()}),
        ("data=\u00e9 b".encode(), {"data": "\u00e9 b".encode()}),
        (b"data=%ff%00", {"data": b"\xff\x00"}),
        (b"%C3%BC=[1, 2]&empty=", {"\u00fc": b"[1, 2]", "empty": b""}),
        (b"a&b=1&c", {"a": b"", "b": b"1"}),
        (b"hello", {}),
        (b"data=a & b&x=1", {"data": b"a ", "b": b"", "x": b"1"}),
    ],
)
def test_every_byte_of_a_value_is_kept(body: bytes, fields: dict[str, bytes]) -> None:
    assert forms.url_encoded(body) == fields


def test_too_many_are_refused() -> None:
    assert len(forms.url_encoded(b"&".join(b"%d=" % i for i in range(forms.MAX_PARTS)))) == forms.MAX_PARTS
    with pytest.raises(TooLarge, match=str(forms.MAX_PARTS)):
        forms.url_encoded(b"&".join(b"%d=" % i for i in range(forms.MAX_PARTS + 1)))


def test_a_guards_row_has_no_parameter_that_would_stand_for_the_body() -> None:
    query = {"data": "x", "body": "y", "file": "z", "top": "3"}
    row = local_guard._row(Request(b"raw", Headers({"content-type": "image/png"}), "id", query=query))
    assert row == {"top": b"3", "body": b"raw"}
    row = local_guard._row(Request(b"data=1&top=2", Headers({"content-type": URL_FORM}), "id", query=query))
    assert row == {"data": b"1", "top": b"2"}


@pytest.mark.parametrize("parameters", ["", "; charset=utf-8", ";charset=iso-8859-1"])
def test_a_guards_row_is_what_a_content_type_says_as_on_torchserve(parameters: str) -> None:
    for kind, body, value in (("application/json", b'{"a": 1}', {"a": 1}), ("text/csv", "\u00e9".encode(), "\u00e9")):
        assert local_guard._row(received(body, kind + parameters)) == {"body": value}
        part = f'--b\r\nContent-Disposition: form-data; name="data"%s\r\nContent-Type: {kind}{parameters}\r\n\r\n%s\r\n--b--'
        for named, found in (('; filename=""', value), ("; filename*=UTF-8''a", value), ("", bytearray(body))):
            assert local_guard._row(received((part % (named, body.decode())).encode())) == {"data": found}
            assert forms.row(received((part % (named, body.decode())).encode())) == {"data": body}
    assert local_guard._row(received(b"{", f"application/json{parameters}")) == {"body": b"{"}


def test_a_guards_row_has_the_last_field_of_a_name_as_on_torchserve() -> None:
    row = local_guard._row(Request(b"data=1&top=2&data=3", Headers({"content-type": URL_FORM}), "id"))
    assert row == {"data": b"3", "top": b"2"}
    part = b'--b\r\ncontent-disposition: form-data; name="data"\r\n\r\n%d\r\n'
    form = Request(part % 1 + part % 2 + b"--b--\r\n", Headers({"content-type": "multipart/form-data; boundary=b"}), "id")
    assert local_guard._row(form) == {"data": bytearray(b"2")}
