"""Find the files in one request: sent as they are, gzipped, in JSON as base64, or as parts of a form.

    <the file's own bytes>                                              one item
    "iVBOR..."    {"data": "iVBOR..."}    {"b64": "iVBOR..."}           one item
    ["iVBOR...", {"b64": "iVBOR..."}]     {"instances": [...]}          an item an element
    several parts of a form                                             an item a part

Base64 may use the usual alphabet or that of URLs, in lines or as a data: URL. JSON is recognised by its first byte, which no
picture starts with, whatever the content type says. An element that cannot be read is an error in its own place. Where no
element can be read, the request is refused as a whole.
"""

from __future__ import annotations

import binascii
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slotwise.worker.budget import Cost
from slotwise.worker.slot_errors import BadRequest, SlotError, TooLarge, UnsupportedMedia

MAX_ITEMS = 256  # of one request
MAX_ITEM_BYTES = 32 << 20
MAX_UNPACKED_BYTES = 64 << 20  # of one gzip body
MAX_PIECES = 10_000  # of a JSON body: base64 has no comma and no bracket, and each piece is an object in memory
FIELDS = ("body", "data", "file", "image")  # what servers call a raw body, then names that forms usually use
KEYS = ("b64", "data")
GZIP = 31  # to zlib this means gzip with the largest window
ADVICE = "send base64 as a string, or an object that has it under 'b64' or 'data'"
URL_ALPHABET = bytes.maketrans(b"-_", b"+/")


def items_of(
    body: bytes, headers: Mapping[str, str], fields: Mapping[str, list[bytes]] | None = None
) -> list[bytes | SlotError]:
    """Every file of a request, at most MAX_ITEMS; a SlotError in the place of one that cannot be read.

    fields: the parts of a form by name. Where a form has several parts, each part of a usual name (FIELDS) is an item, and
    without such names every part is. Raises BadRequest, TooLarge or UnsupportedMedia where the whole request cannot be read.
    """
    parts = _parts(fields or {})
    if len(parts) > 1:
        if headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
            raise UnsupportedMedia("the parts of a form are taken as they are, without a content-encoding")
        return list(_limited(parts, "files"))
    body = _unpacked(parts[0] if parts else body, headers)
    if body[:64].lstrip(b" \t\r\n\xef\xbb\xbf")[:1] not in (b"{", b"[", b'"'):
        return [_unquoted(body, headers)]
    items = [_item(value) for value in _limited(_elements(_json(body)), "instances")]
    if items and all(isinstance(item, SlotError) for item in items):
        raise items[0]  # type: ignore[misc]  # all of them are errors
    return items


def each(items: Sequence[bytes | SlotError], decode: Callable[[bytes], Any]) -> list[Any]:
    """Decode one item after the other. A SlotError stands in its item's place; where there is only one item, it is raised."""
    decoded = []
    for item in items:
        try:
            decoded.append(item if isinstance(item, SlotError) else decode(item))
        except SlotError as error:
            if len(items) == 1:
                raise
            decoded.append(error)
    return decoded


def cost_of(body: bytes, headers: Mapping[str, str], cost: Callable[[bytes], Cost]) -> Cost:
    """The cost of all items of a body: the sum of their times, and the memory of the largest. Raises what items_of raises."""
    costs = [cost(item) for item in items_of(body, headers) if not isinstance(item, SlotError)]
    if len(costs) == 1:
        return costs[0]
    return Cost(sum(each.decode_ms for each in costs), max((each.memory_bytes for each in costs), default=0))


def _parts(fields: Mapping[str, list[bytes]]) -> list[bytes]:
    """The parts that carry files: those of the usual names, or where there are none all."""
    names = [name for name in fields if name in FIELDS] or list(fields)
    return [part for name in names for part in fields[name]]


def _limited(values: list[Any], what: str) -> list[Any]:
    if len(values) > MAX_ITEMS:
        raise TooLarge(f"the request has {len(values)} {what}, at most {MAX_ITEMS} are taken at once")
    return values


def _unpacked(body: bytes, headers: Mapping[str, str]) -> bytes:
    """The body without its content-encoding. Never unpacks more than one byte above the limit."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip"):
        raise UnsupportedMedia("of content-encodings only gzip is taken")
    unpacker = zlib.decompressobj(GZIP)
    try:
        unpacked = unpacker.decompress(body, MAX_UNPACKED_BYTES + 1)
    except zlib.error:
        raise BadRequest("the content-encoding is gzip, but the body is damaged or something else") from None
    if len(unpacked) > MAX_UNPACKED_BYTES:
        raise TooLarge(f"the body unpacks to more than the {MAX_UNPACKED_BYTES} bytes that are taken")
    if not unpacker.eof or unpacker.unused_data:
        raise BadRequest("the gzip body is cut off, or something follows it")
    return unpacked


def _unquoted(body: bytes, headers: Mapping[str, str]) -> bytes:
    """The file itself. Where it is base64 without quotes, because a server has parsed the JSON, it is decoded."""
    if "json" in headers.get("content-type", "") and body.isascii():
        item = _item(body.decode("ascii"))
        return body if isinstance(item, SlotError) else item
    return body


def _json(body: bytes) -> Any:
    if body.count(b",") + body.count(b"[") + body.count(b"{") > MAX_PIECES:
        raise TooLarge(f"the JSON is made of more than {MAX_PIECES} pieces")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, a number of too many digits, or lists nested too deep
        raise BadRequest("the body starts like JSON, but it is not JSON") from None


def _elements(data: Any) -> list[Any]:
    """The elements of a list or of {"instances": [...]}; anything else is one element."""
    if isinstance(data, dict) and "instances" in data:
        data = data["instances"]
        if not isinstance(data, list):
            raise BadRequest("instances must be a list")
    elements = data if isinstance(data, list) else [data]
    if not elements:
        raise BadRequest("the request has no instances")
    return elements


def _item(value: Any) -> bytes | SlotError:
    """The bytes of one element: a string, or an object with one, or one more object around that."""
    for _ in range(2):
        if isinstance(value, dict):
            value = next((value[key] for key in KEYS if key in value), None)
    if not isinstance(value, str):
        return BadRequest(f"the JSON holds no file here: {ADVICE}")
    if len(value) > MAX_ITEM_BYTES * 3 // 2:
        return TooLarge(f"a file has more than the {MAX_ITEM_BYTES} bytes that are taken")
    if value.startswith("data:"):
        value = value[value.find(",") + 1 :]
    try:
        packed = b"".join(value.encode("ascii").split()).translate(URL_ALPHABET).rstrip(b"=")
        return binascii.a2b_base64(packed + b"=" * (-len(packed) % 4), strict_mode=True)
    except ValueError:  # also UnicodeEncodeError and binascii.Error
        return BadRequest(f"this is not base64: {ADVICE}")
