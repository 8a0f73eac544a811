"""Find the files in a JSON body: strings of base64, alone, in objects or in a list.

"iVBOR..."    {"data": "iVBOR..."}    {"b64": "iVBOR..."}           one file
["iVBOR...", {"b64": "iVBOR..."}]     {"instances": [...]}          a file an element
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slotwise.worker.inputs.packed import from_base64
from slotwise.worker.slot_errors import BadRequest, SlotError, TooLarge

MAX_ITEMS = 256  # of one request
MAX_ITEM_BYTES = 32 << 20
MAX_PIECES = 10_000  # of a JSON body: base64 has no comma and no bracket, and each piece is an object in memory
KEYS = ("b64", "data")
ADVICE = "send base64 as a string, or an object that has it under 'b64' or 'data'"


def is_json(body: bytes) -> bool:
    """Whether a body, or its beginning, is JSON by its first byte, which no picture starts with."""
    return body[:64].lstrip(b" \t\r\n\xef\xbb\xbf")[:1] in (b"{", b"[", b'"')


def is_unquoted(body: bytes, headers: Mapping[str, str]) -> bool:
    """Whether a body may be base64 without its quotes, because a server has parsed the JSON."""
    return "json" in headers.get("content-type", "").lower() and body.isascii()


def is_list(body: bytes) -> bool:
    """Whether JSON that `elements` has read is a list, or {"instances": [...]}."""
    if not is_json(body):
        return False
    data = json.loads(body)
    return isinstance(data, list) or (isinstance(data, dict) and "instances" in data)


def elements(body: bytes) -> list[Any]:
    """The elements of a JSON list or of {"instances": [...]}; anything else is one element.

    Raises BadRequest or TooLarge.
    """
    if body.count(b",") + body.count(b"[") + body.count(b"{") > MAX_PIECES:
        raise TooLarge(f"the JSON is made of more than {MAX_PIECES} pieces")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, a number of too many digits, or lists nested too deep
        raise BadRequest("the body starts like JSON, but it is not JSON") from None
    if isinstance(data, dict) and "instances" in data:
        if any(key in data for key in KEYS):
            raise BadRequest("an object has its files under 'instances', or one under 'b64' or 'data', not under both")
        data = data["instances"]
        if not isinstance(data, list):
            raise BadRequest("instances must be a list")
    instances = data if isinstance(data, list) else [data]
    if not instances:
        raise BadRequest("the request has no instances")
    if len(instances) > MAX_ITEMS:
        raise TooLarge(f"the request has {len(instances)} instances, at most {MAX_ITEMS} are taken at once")
    return instances


def base64_of(element: Any) -> str | SlotError:
    """The base64 of one element: a string, or an object with one, or one more object around that."""
    for _ in range(2):
        if isinstance(element, dict):
            held = [element[key] for key in KEYS if key in element]
            if len(held) > 1:
                return BadRequest("an object has its file under 'b64' or 'data', not under both")
            element = next(iter(held), None)
    if not isinstance(element, str):
        return BadRequest(f"the JSON holds no file here: {ADVICE}")
    if len(element) > MAX_ITEM_BYTES * 3 // 2:
        return TooLarge(f"a file has more than the {MAX_ITEM_BYTES} bytes that are taken")
    return element[element.find(",") + 1 :] if element.startswith("data:") else element


def file_of(element: Any) -> bytes | SlotError:
    """The file that one element holds."""
    text = base64_of(element)
    if isinstance(text, SlotError):
        return text
    try:
        return from_base64(text)
    except ValueError:  # also UnicodeEncodeError and binascii.Error
        return BadRequest(f"this is not base64: {ADVICE}")
