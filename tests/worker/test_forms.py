"""A form's body is taken apart as the servers' front ends do it, and nothing in it raises anything but a refusal."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.worker.hosts import forms, reading
from slotwise.worker.hosts.forms import RepeatedParts
from slotwise.worker.request import Headers, Request
from slotwise.worker.slot_errors import SlotError


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
