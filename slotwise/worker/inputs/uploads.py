"""Find the files in one request: sent as they are, gzipped, in JSON as base64, or as parts of a form.

    <the file's own bytes>                                              one item
    "iVBOR..."    {"data": "iVBOR..."}    {"b64": "iVBOR..."}           one item
    ["iVBOR...", {"b64": "iVBOR..."}]     {"instances": [...]}          an item an element
    several parts of a form                                             an item a part

What may hold several is answered by a list, of one where there is one.

Base64 may use the usual alphabet or that of URLs, in lines or as a data: URL. JSON is recognised by its first byte, which no
picture starts with, whatever the content type says. An element that cannot be read is an error in its own place. Where no
element can be read, the request is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slotwise.worker.inputs import packed
from slotwise.worker.inputs.json_files import MAX_ITEMS, elements, file_of, is_json, is_list, is_unquoted
from slotwise.worker.inputs.upload_cost import cost_of
from slotwise.worker.request import Request
from slotwise.worker.slot_errors import SlotError, TooLarge, UnsupportedMedia

__all__ = ["FIELDS", "cost_of", "each", "is_one_of_a_list", "items_of"]

FIELDS = ("body", "data", "file", "image")  # what servers call a raw body, then names that forms usually use


def beside_a_body(query: Mapping[str, str]) -> dict[str, str]:
    """The parameters of an address as fields of a row: without those of FIELDS, which would stand for the body."""
    return {name: value for name, value in query.items() if name not in FIELDS}


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
        if len(parts) > MAX_ITEMS:
            raise TooLarge(f"the request has {len(parts)} files, at most {MAX_ITEMS} are taken at once")
        return list(parts)
    body = parts[0] if parts else body
    if packed.is_gzipped(headers):
        body = packed.unpacked(body)
    if is_json(body):
        items = [file_of(element) for element in elements(body)]
        if all(isinstance(item, SlotError) for item in items):
            raise items[0]  # type: ignore[misc]  # all of them are errors
        return items
    file = file_of(body.decode("ascii")) if is_unquoted(body, headers) else body
    return [body if isinstance(file, SlotError) else file]


def is_one_of_a_list(request: Request, results: Sequence[Any]) -> bool:
    """Whether the only result is answered by a list of one: its request might have held several. An error is the request's."""
    if len(results) != 1 or isinstance(results[0], SlotError):
        return False
    parts = _parts(request.fields)
    return is_list(parts[0] if parts else request.body)


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


def _parts(fields: Mapping[str, Sequence[bytes]]) -> list[bytes]:
    """The parts that carry files: those of the usual names, or where there are none all."""
    names = [name for name in fields if name in FIELDS] or list(fields)
    return [part for name in names for part in fields[name]]
