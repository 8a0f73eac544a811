"""Fields for a stranger's handler: decoded as its server does, and one that cannot be costs only its sender."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.worker.hosts.java import unreadable
from slotwise.worker.hosts.java.unreadable import Unreadable, decoded, left_to_us, row

NAME = "mms.protocol.otf_message_handler"


def test_a_server_without_that_code_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, NAME, SimpleNamespace())
    assert not unreadable.install()


@pytest.mark.parametrize(("switch", "value"), [("true", {"a": 1}), ("false", b'{"a": 1}')])
def test_a_field_of_mms_is_decoded_where_the_server_decodes(monkeypatch: pytest.MonkeyPatch, switch: str, value: Any) -> None:
    parts = iter([b"body", b"application/json", b'{"a": 1}'])
    lengths = iter([4, 16, 8, -1])
    protocol = SimpleNamespace(
        _retrieve_int=lambda conn: next(lengths), _retrieve_buffer=lambda conn, length: next(parts), _retrieve_input_data=None
    )
    monkeypatch.setitem(sys.modules, NAME, protocol)
    monkeypatch.setenv("MMS_DECODE_INPUT_REQUEST", switch)
    assert unreadable.install()
    field: Any = protocol._retrieve_input_data
    assert field(None) == {"name": "body", "contentType": "application/json", "value": value}
    assert field(None) is None


def test_what_cannot_be_decoded() -> None:
    assert isinstance(decoded(b"{", "application/json"), Unreadable)
    assert decoded(b"{", "application/json", "torchserve") == b"{"
    assert isinstance(decoded(b"\xff", "text/plain"), Unreadable)
    assert decoded(b"\xff", "image/png") == b"\xff"
    assert decoded(b"a", "text/plain") == "a"


def test_each_field_by_its_own_type() -> None:
    headers = {"a": {"content-type": "application/json"}, "b": {}, "c": "text"}
    assert row({"a": b"[1]", "b": b"x", "c": b"y"}, headers, "mms") == {"a": [1], "b": b"x", "c": b"y"}


def test_who_decodes() -> None:
    assert left_to_us({"SLOTWISE_WORKER": "1", "TS_DECODE_INPUT_REQUEST": "false"})
    assert not left_to_us({"SLOTWISE_WORKER": "1"})
    assert not left_to_us({"MMS_DECODE_INPUT_REQUEST": "false"})
