"""A text handler's one text, as plain UTF-8 and as KServe's V1 sends it."""

from __future__ import annotations

import json

import pytest

from slotwise.frontend.protocols import kserve_v1
from slotwise.frontend.protocols.records import RecordBody
from slotwise.worker import decode_text
from slotwise.worker.slot_errors import SlotError

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("text", ['say "hi"', "grüß dich\n", "\\n", "42", "null", "😀", '"quoted"'])
def test_a_text_is_the_same_whichever_way_it_came(text: str) -> None:
    assert decode_text(text.encode(), {}) == text
    assert decode_text(text.encode(), {"content-type": 'text/plain; charset="UTF-8"'}) == text
    for ascii_only in (True, False):
        (record,) = kserve_v1.records(json.dumps({"instances": [text]}, ensure_ascii=ascii_only).encode())
        assert isinstance(record, RecordBody)
        assert decode_text(record.body, {"content-type": record.content_type}) == text


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 422),
        (b" \n", {}, 422),
        (b'""', JSON, 422),
        (b'["a"]', JSON, 422),
        (b"42", JSON, 422),
        (b'"\\ud800"', JSON, 422),
        (b"hello", JSON, 400),
        (b'"a', {"content-type": "application/json; charset=utf-8"}, 400),
        (b"[" * 100_000, JSON, 400),
        (b"\xff\xfeh\x00", {}, 400),
        ("grüß".encode("latin-1"), {"content-type": "text/plain; charset=iso-8859-1"}, 415),
    ],
    ids=range(11),
)
def test_what_is_no_text_is_refused(body: bytes, headers: dict[str, str], status: int) -> None:
    with pytest.raises(SlotError) as refused:
        decode_text(body, headers)
    assert refused.value.code == status
