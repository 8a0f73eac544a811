"""Own what theirs gave for one slot: bytes, a status and texts that nothing theirs does later can change.

Theirs may fill the same objects again in its next call. So each answer is encoded as soon as theirs has returned, as the server
would encode it. What cannot be encoded or sent fails here, alone: in the server it would cost the whole batch its answers, or
end the worker.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slotwise.worker.answer import FRAMING, HEADER_NAME
from slotwise.worker.copies import FIXED
from slotwise.worker.slot_errors import ModelFault, SlotError, text

logger = logging.getLogger(__name__)

NO_BODY = (204, 205, 304)  # a client would take the body for the beginning of the next answer


class Owned(NamedTuple):
    """One slot's answer. tensor: the body is a saved torch tensor."""

    body: bytes
    status: int
    phrase: str | None
    headers: tuple[tuple[str, str], ...]
    tensor: bool = False


class WrongAnswer(Exception):
    """Theirs returned something else than one answer a request."""


class Miscounted(WrongAnswer):
    """Theirs returned another number of answers than there are requests, `given`: nobody knows which is whose."""

    given: Sequence[Any] = ()


def one_each(results: Any, n: int, *, shared: bool = False) -> list[Any]:
    """What theirs returned as a plain list of n; raises WrongAnswer where it is none, or one object stands for several.

    shared: one may, as theirs is not asked for each alone.
    """
    if not isinstance(results, list):
        raise WrongAnswer(f"{_kind(results)} for {n} requests")
    if len(results) != n:
        error = Miscounted(f"{_kind(results)} for {n} requests")
        error.given = list.copy(results)
        raise error
    listed = list.copy(results)
    if len(listed) != n:
        raise WrongAnswer(f"a list that says it has {n} answers, and has {len(listed)}")
    if type(results) is not list and any(results[i] is not listed[i] for i in range(n)):
        raise WrongAnswer("a list that shows other answers than it holds")
    changeable = [id(result) for result in listed if not isinstance(result, FIXED)]
    if len(set(changeable)) < len(changeable) and not shared:
        raise WrongAnswer("one object for several requests")
    return listed


def owned(result: Any, processor: Any, tensors: bool, most_bytes: int | None = None) -> Owned | SlotError:
    """One slot's result, and the status and headers that were set for it; a SlotError where that cannot be sent.

    tensors: results may be torch tensors, as on TorchServe. most_bytes: so many the server lets through.
    """
    try:
        status, phrase = _status(processor)
        headers = _headers(processor.get_response_headers())
        body = b"" if status in NO_BODY else encoded(result, tensors)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, SlotError):
            return error
        logger.warning("an answer of type %s cannot be sent", type(result).__name__, exc_info=True)
        return ModelFault("the handler's answer cannot be sent")
    if most_bytes is not None and len(body) > most_bytes:  # the server would end the worker
        return ModelFault(f"the answer has {len(body)} bytes, {most_bytes} may leave the server")
    return Owned(body, status, phrase, headers, tensors and _is_tensor(result))


def encoded(result: Any, tensors: bool) -> bytes:
    """The result as both servers encode it; raises whatever that raises. tensors: save them, as TorchServe does."""
    if isinstance(result, bytes | bytearray):
        return result if type(result) is bytes else bytes(memoryview(result))
    if isinstance(result, str):
        return str.encode(result, "utf-8")
    if tensors and _is_tensor(result):
        return _saved(result)
    return json.dumps(result, indent=2).encode("utf-8")


def numbers(body: bytes) -> Any:
    """The numbers of a saved tensor, as lists."""
    loaded: Any = sys.modules["torch"].load(io.BytesIO(body), weights_only=True)
    return loaded.tolist()


def _is_tensor(result: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(result, torch.Tensor)


def _saved(tensor: Any) -> bytes:
    """A tensor as torch saves it. One that is a part of a larger one is copied out: else all of that would be saved with it."""
    if tensor.layout is sys.modules["torch"].strided:
        own = tensor.numel() * tensor.element_size()
        if tensor.untyped_storage().nbytes() != own:
            tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    target = io.BytesIO()
    sys.modules["torch"].save(tensor, target)
    return target.getvalue()


def _status(processor: Any) -> tuple[int, str | None]:
    """The slot's status line; raises ModelFault where it cannot be sent: both servers pack it without looking."""
    code, phrase = processor.get_response_status_code(), processor.get_response_status_phrase()
    if code is None:
        code = 200
    if not (isinstance(code, int) and 200 <= code <= 999):  # after a 1xx a client waits for another answer
        raise ModelFault("the handler set a status that cannot be sent")
    if phrase and not (isinstance(phrase, str) and phrase.isascii() and phrase.isprintable()):
        raise ModelFault("the handler set a status phrase that cannot be sent")
    return int(code), phrase or None


def _headers(headers: Mapping[Any, Any]) -> tuple[tuple[str, str], ...]:
    """Every header of a slot as texts that can be sent; raises ModelFault where that cannot be done.

    A line break would end the front end's loop over the batch; a content type that is not ASCII gets a wrong length. Headers
    that frame a message are the server's: they are left out.
    """
    sent = {}
    for given, raw in list(headers.items()):
        if type(given) is not str or HEADER_NAME.fullmatch(given) is None:
            raise ModelFault("the handler set a header that cannot be sent")
        name = "content-type" if given.lower() == "content-type" else given
        if name.lower() in FRAMING and (raw is None or name != "content-type"):
            continue
        value = text(raw)
        if not value.replace("\t", " ").isprintable() or (name == "content-type" and not value.isascii()):
            raise ModelFault(f"the handler set a {'content type' if name == 'content-type' else 'header'} that cannot be sent")
        sent[name] = value
    return tuple(sent.items())


def _kind(results: Any) -> str:
    if results is None:
        return "None"
    return f"{len(results)} answers" if isinstance(results, list) else f"a {type(results).__name__}"
