"""One request to the files that it carries: base64 in JSON, gzip, several parts of a form, and every way to get them wrong."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.worker import BadRequest, Headers, SlotError, TooLarge, UnsupportedMedia
from slotwise.worker.inputs import json_files, packed, uploads
from slotwise.worker.inputs.uploads import each, items_of

FILE = b"\xff\xd8\xff\xfb\xff\xbf and so on"  # its base64 has + and /
B64 = base64.b64encode(FILE).decode()
ZIPPED = Headers({"content-encoding": "gzip"})


def of(value: Any, **headers: str) -> list[bytes | SlotError]:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return items_of(body, Headers({name.replace("_", "-"): text for name, text in headers.items()}))


@pytest.mark.parametrize(
    "value",
    [
        FILE,
        B64,
        {"data": B64},
        {"b64": B64},
        {"data": {"b64": B64}},
        [B64],
        {"instances": [B64]},
        {"instances": [{"b64": B64}]},
        {"instances": [{"data": B64, "note": 1}]},
        B64.rstrip("="),
        base64.urlsafe_b64encode(FILE).decode(),
        base64.encodebytes(FILE * 1).decode(),
        f"data:image/jpeg;base64,{B64}",
        b"\xef\xbb\xbf \n " + json.dumps(B64).encode(),
        json.dumps({"data": B64}).encode("utf-8-sig"),
        b'{"b64": "no", "b64": "' + B64.encode() + b'"}',  # of two keys the last counts, as everywhere in Python
    ],
)
def test_one_file_in_many_clothes(value: Any) -> None:
    assert of(value) == [FILE]


def test_a_string_that_the_server_unquoted_is_still_base64() -> None:
    assert of(B64.encode(), content_type="application/json") == [FILE]
    assert of(B64.encode()) == [B64.encode()]
    assert of(FILE, content_type="application/json") == [FILE]


def test_many_files_stay_in_order_with_errors_in_place() -> None:
    items = of({"instances": [{"b64": B64}, {"b64": "?"}, 7, None, B64, [B64], {"other": B64}, {"data": {"data": {}}}]})
    assert [item if isinstance(item, bytes) else item.code for item in items] == [FILE, 400, 400, 400, FILE, 400, 400, 400]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", BadRequest),
        (b'{"data": ', BadRequest),
        (b'"\xff\xfe"', BadRequest),
        (b'"\\ud800"', BadRequest),
        (b'{"data": "\\ud800AAA"}', BadRequest),
        (b'{"data": "AAAA=AAA"}', BadRequest),
        (b'{"data": "A"}', BadRequest),
        ('{"data": "bïld"}'.encode(), BadRequest),
        (b'{"data": 5}', BadRequest),
        (b'{"data": ["AAAA"]}', BadRequest),
        (b"{}", BadRequest),
        (b"[]", BadRequest),
        (b'{"instances": []}', BadRequest),
        (b'{"instances": {"b64": "AAAA"}}', BadRequest),
        (b'{"instances": [1, 2]}', BadRequest),
        (b"[" * 200_000, TooLarge),
        (b"[" * 200_000 + b"]" * 200_000, TooLarge),
        (b'{"data": ' * 50_000 + b"1" + b"}" * 50_000, TooLarge),
        (b"[" + b"9" * 10_000 + b"]", BadRequest),
        (b'{"instances": [' + b'"AAAA",' * 99_999 + b'"AAAA"]}', TooLarge),
        (json.dumps(["AAAA"] * (uploads.MAX_ITEMS + 1)).encode(), TooLarge),
        (b'{"b64": "AAAA", "data": "BBBB"}', BadRequest),
        (b'{"instances": ["AAAA"], "data": "BBBB"}', BadRequest),
    ],
)
def test_what_cannot_be_read_is_one_clear_refusal(body: bytes, kind: type[SlotError]) -> None:
    with pytest.raises(kind) as refused:
        items_of(body, Headers())
    json.dumps(refused.value.body(), ensure_ascii=False).encode()
    assert len(refused.value.message) < 200


def test_a_file_over_the_limit_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "MAX_ITEM_BYTES", 100)
    small, large = of([B64, "A" * 151])
    assert small == FILE
    assert isinstance(large, TooLarge)


def test_gzip_is_unpacked_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert items_of(gzip.compress(FILE, mtime=0), ZIPPED) == [FILE]
    assert items_of(gzip.compress(json.dumps([B64, B64]).encode()), ZIPPED) == [FILE, FILE]
    assert items_of(FILE, Headers({"content-encoding": "identity"})) == [FILE]
    monkeypatch.setattr(packed, "MAX_UNPACKED_BYTES", 1000)
    assert items_of(gzip.compress(b"\xff" * 1000, mtime=0), ZIPPED) == [b"\xff" * 1000]
    with pytest.raises(TooLarge):
        items_of(gzip.compress(b"\xff" * 1001, mtime=0), ZIPPED)


def test_a_gzip_bomb_unpacks_no_further_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[int] = []

    class Watched:
        def __init__(self, window: int) -> None:
            self.inner = zlib_decompressobj(window)

        def decompress(self, data: bytes, most: int) -> bytes:
            got = self.inner.decompress(data, most)
            unpacked.append(len(got))
            return got

    zlib_decompressobj = zlib.decompressobj
    monkeypatch.setattr(packed.zlib, "decompressobj", Watched)
    monkeypatch.setattr(packed, "MAX_UNPACKED_BYTES", 1 << 20)
    with pytest.raises(TooLarge):
        items_of(gzip.compress(bytes(30 << 20)), ZIPPED)
    assert unpacked == [(1 << 20) + 1]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        FILE,
        gzip.compress(FILE, mtime=0)[:-3],
        gzip.compress(FILE, mtime=0)[:-8] + bytes(8),
        gzip.compress(FILE, mtime=0) + b"more",
        gzip.compress(FILE, mtime=0) * 2,
    ],
)
def test_damaged_gzip_is_the_senders_error(body: bytes) -> None:
    with pytest.raises(BadRequest):
        items_of(body, ZIPPED)


def test_other_encodings_are_named_as_not_taken() -> None:
    with pytest.raises(UnsupportedMedia, match="gzip"):
        items_of(FILE, Headers({"content-encoding": "br"}))


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, [b"body"]),
        ({"body": [b"a"]}, [b"a"]),
        ({"file": [b"a", b"b"]}, [b"a", b"b"]),
        ({"note": [b"no"], "file": [b"a"]}, [b"a"]),
        ({"image": [b"a"], "note": [b"no"], "data": [b"b", b"c"]}, [b"a", b"b", b"c"]),
        ({"one": [b"a"], "two": [b"b"]}, [b"a", b"b"]),
        ({"file": [json.dumps([B64, B64]).encode()]}, [FILE, FILE]),
    ],
)
def test_every_part_of_a_form_is_an_item(fields: dict[str, list[bytes]], wanted: list[bytes]) -> None:
    assert items_of(b"body", Headers(), fields) == wanted


def test_too_many_parts_are_refused() -> None:
    with pytest.raises(TooLarge, match="files"):
        items_of(b"", Headers(), {"file": [b"a"] * (uploads.MAX_ITEMS + 1)})


def test_one_item_that_fails_is_the_requests_error_one_of_many_stands_in_its_place() -> None:
    def decode(item: bytes) -> int:
        if item == b"bad":
            raise TooLarge("why")
        return len(item)

    assert each([b"four"], decode) == [4]
    with pytest.raises(TooLarge):
        each([b"bad"], decode)
    bad = BadRequest("not base64")
    decoded = each([b"four", b"bad", bad], decode)
    assert (decoded[0], decoded[1].code, decoded[2]) == (4, 413, bad)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.just(B64),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["instances", "data", "b64", "x"]), inner),
)


@settings(max_examples=100, deadline=None)
@given(json_values | st.binary(max_size=60), st.sampled_from(["", "gzip", "identity"]))
def test_whatever_is_sent_is_items_or_one_refusal(value: Any, encoding: str) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    if encoding == "gzip" and len(body) % 2:
        body = gzip.compress(body, mtime=0)
    try:
        items = items_of(body, Headers({"content-encoding": encoding}))
    except (BadRequest, TooLarge, UnsupportedMedia):
        return
    assert items
    assert all(isinstance(item, bytes | SlotError) for item in items)


def test_json_of_very_many_pieces_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(TooLarge, match="pieces"):
        items_of(b"[" + b"[]," * 20_000 + b"[]]", {})


def test_the_parts_of_a_form_have_no_content_encoding() -> None:
    with pytest.raises(UnsupportedMedia, match="content-encoding"):
        items_of(b"", {"content-encoding": "gzip"}, {"data": [b"a", b"b"]})
