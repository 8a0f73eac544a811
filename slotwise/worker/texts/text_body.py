"""Read the texts of a body, or its pairs of texts: plain, or JSON in the forms that clients of Hugging Face and KServe send.

a text                                     one text         "a text"                           the same as JSON
{"text": "...", "text_pair": "..."}        one pair         [..., ...]                         several of either
{"inputs": ...}                            as under `inputs`, and so {"instances": ...}
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from typing import Any

from slotwise.worker.inputs.plain_text import UNNAMED, decode_text
from slotwise.worker.slot_errors import BadRequest, SlotError, TooLarge, Unprocessable, UnsupportedMedia

MAX_TEXTS = 256  # of one request
TEXT, SECOND = "text", "text_pair"
SECOND_PART = f', "{SECOND}": "..."'
AROUND = ("inputs", "instances")
IGNORED = ("options", "signature_name")  # beside them: what Hugging Face's clients tell their own servers, and TensorFlow's
JSON = "application/json"

Texts = tuple[str, str | None]  # the second is None where the model takes one


def texts_of(body: bytes, headers: Mapping[str, str], *, pairs: bool) -> list[Texts | SlotError]:
    """The texts of a body, each with its error in its place. Raises a SlotError where the body is bad as a whole.

    pairs: the model takes two texts a record, and never one; without it one, and never two.
    """
    data = _json(body, headers)
    if data is None:
        return [_checked(decode_text(body, headers), None, pairs=pairs)]
    if isinstance(data, list):
        if not data:
            raise BadRequest("the request has no texts")
        if len(data) > MAX_TEXTS:
            raise TooLarge(f"the request has {len(data)} texts, at most {MAX_TEXTS} are taken at once")
        return [_record(one, pairs=pairs) for one in data]
    one = _record(data, pairs=pairs)
    if isinstance(one, SlotError):
        raise one
    return [one]


def is_list_of_texts(body: bytes, headers: Mapping[str, str]) -> bool:
    """Whether a body that `texts_of` has read may hold several texts, so that its answer is a list."""
    return isinstance(_json(body, headers), list)


def _json(body: bytes, headers: Mapping[str, str]) -> Any:
    """What a body says as JSON, without what stands around it; None where it is a plain text. Raises a SlotError."""
    kind = headers.get("content-type", "").lower().partition(";")[0].strip()
    told = kind == JSON or kind.endswith("+json")
    if not told and kind not in UNNAMED:
        raise UnsupportedMedia(f"send texts as text/plain or {JSON}")
    body = body.removeprefix(BOM_UTF8)
    if not told and (kind == "text/plain" or not body.lstrip().startswith(b"{")):
        return None
    if body.count(b",") + body.count(b"[") + body.count(b"{") > 32 * MAX_TEXTS + body.count(b" "):
        raise TooLarge(f"the JSON is made of more pieces than {MAX_TEXTS} texts have")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        if told:
            raise BadRequest("the body is not JSON") from None
        return None
    if not told and not (isinstance(data, dict) and data.keys() & {TEXT, *AROUND}):
        return None  # a text that looks like JSON
    if isinstance(data, dict):
        around = next((name for name in AROUND if name in data), None)
        if around is not None:
            _nothing_beside(data, around)
            data = data[around]
    if data is None:
        raise Unprocessable("the body holds no text")
    return data


def _nothing_beside(data: Mapping[str, Any], around: str) -> None:
    """Raise Unprocessable where a client asks for what no text handler does: answered as if it had not, it would be wrong."""
    beside = next((name for name, value in data.items() if name not in (around, *IGNORED) and value not in (None, {})), None)
    if beside is not None:
        raise Unprocessable(f"beside {around!r} this model takes nothing, and {beside[:40]!r} is there")


def _record(value: Any, *, pairs: bool) -> Texts | SlotError:
    """One record: a text, or an object that has one, or two."""
    second: Any = None
    if isinstance(value, dict):
        unknown = next((name for name in value if name not in (TEXT, SECOND)), None)
        if unknown is not None or TEXT not in value:
            wanted = f'{{"{TEXT}": "..."{SECOND_PART if pairs else ""}}}'
            return Unprocessable(f"a record is {wanted}" + (f", without {unknown[:40]!r}" if unknown else ""))
        value, second = value[TEXT], value.get(SECOND)
    if not isinstance(value, str) or not (second is None or isinstance(second, str)):
        return Unprocessable("a record must be a text, or an object of texts")
    try:
        return _checked(value, second, pairs=pairs)
    except SlotError as error:
        return error


def _checked(text: str, second: str | None, *, pairs: bool) -> Texts:
    if pairs and second is None:
        raise Unprocessable(f'this model takes pairs: {{"{TEXT}": "..."{SECOND_PART}}}')
    if not pairs and second is not None:
        raise Unprocessable(f"this model takes one text a record, and no {SECOND}")
    for part in (text, second):
        if part is None:
            continue
        if not part.strip():
            raise Unprocessable("the text is empty")
        try:
            part.encode()
        except UnicodeError:
            raise Unprocessable("the text holds half of a surrogate pair, which is no character") from None
    return text, second
