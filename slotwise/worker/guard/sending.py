"""One slot's result as the bytes that its server would send: what cannot be sent fails here, alone.

Both servers encode a batch's results one after the other, and one that cannot be encoded costs the whole batch its answers, or
ends the worker. So each is encoded here, as they do it; the server then only copies bytes.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any

from slotwise.worker.answer import HEADER_NAME
from slotwise.worker.slot_errors import ModelFault, text


def encoded(result: Any, tensors: bool) -> bytes | bytearray:
    """The result as both servers encode it; raises whatever that raises. tensors: save them, as TorchServe does."""
    if isinstance(result, bytes | bytearray):
        return result
    if isinstance(result, str):
        return result.encode("utf-8")
    torch = sys.modules.get("torch") if tensors else None
    if torch is not None and isinstance(result, torch.Tensor):
        saved = io.BytesIO()
        torch.save(result, saved)
        return saved.getvalue()
    return json.dumps(result, indent=2).encode("utf-8")


def check_status(processor: Any) -> None:
    """Raise ModelFault where the slot's status line cannot be sent: both servers pack it without looking."""
    code, phrase = processor.get_response_status_code(), processor.get_response_status_phrase()
    if code == 200 and not phrase:
        return
    if code is not None and not (isinstance(code, int) and 100 <= code <= 999):
        raise ModelFault("the handler set a status that does not exist")
    if phrase and not (isinstance(phrase, str) and phrase.isascii() and phrase.isprintable()):
        raise ModelFault("the handler set a status phrase that cannot be sent")


def check_headers(headers: Any) -> None:
    """Make every header of a slot a text that can be sent; ModelFault where that cannot be done.

    A line break would end the front end's loop over the batch; a content type that is not ASCII gets a wrong length.
    """
    for name, value in list(headers.items()):
        if value is None and name == "content-type":
            del headers[name]
            continue
        if type(value) is not str:
            headers[name] = value = text(value)
        if type(name) is not str or HEADER_NAME.fullmatch(name) is None or not value.replace("\t", " ").isprintable():
            raise ModelFault("the handler set a header that cannot be sent")
        if name.lower() == "content-type" and not value.isascii():
            raise ModelFault("the handler set a content type that cannot be sent")
