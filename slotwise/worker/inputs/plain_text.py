"""Read the one text of a request, whichever way it came: as plain UTF-8, or as the JSON string that KServe's V1 sends."""

from __future__ import annotations

import json
from collections.abc import Mapping

from slotwise.worker.slot_errors import BadRequest, Unprocessable, UnsupportedMedia

UNNAMED = ("", "application/octet-stream", "application/x-www-form-urlencoded", "text/plain")  # of a body that is looked at
CHARSETS = ("", "utf-8", "utf8", "us-ascii")


def decode_text(body: bytes, headers: Mapping[str, str]) -> str:
    """The text of a body: UTF-8 as it is, or where the content type is JSON, what its string says, without quotes.

    Raises BadRequest for what is neither, UnsupportedMedia for another charset, and Unprocessable for JSON that is no string,
    half of a surrogate pair, and a text without a visible character.
    """
    kind, _, parameters = headers.get("content-type", "").lower().partition(";")
    _, _, charset = parameters.partition("charset=")
    charset = charset.partition(";")[0].strip(' "')
    if charset not in CHARSETS:
        raise UnsupportedMedia(f"the text must be UTF-8, not {charset:.40}")
    text = _json_string(body) if kind.strip() == "application/json" else _utf_8(body)
    if not text.strip():
        raise Unprocessable("the text is empty")
    return text


def _utf_8(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRequest("the text is not UTF-8") from error


def _json_string(body: bytes) -> str:
    try:
        text = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest("the body is not JSON") from error
    if not isinstance(text, str):
        raise Unprocessable("the body must be one JSON string")
    try:
        text.encode("utf-8")
    except UnicodeError as error:
        raise Unprocessable("the text holds half of a surrogate pair, which is no character") from error
    return text
