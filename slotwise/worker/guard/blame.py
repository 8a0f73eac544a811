"""Whose an error is, and what the guilty get: from what a stranger's handler raised for one request alone to its answer.

What theirs has caught itself raises nothing: the error is one request's, and several have been given it, with 200 often enough.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from slotwise.worker.guard.owned import Owned, WrongAnswer
from slotwise.worker.slot_errors import BadRequest, ModelFault, SlotError, text

# Errors that tell of what was sent, by the name of their class: JSONDecodeError is that of json, orjson and simplejson alike.
BAD_INPUT = frozenset(
    {"PIL.UnidentifiedImageError", "PIL.Image.DecompressionBombError", "JSONDecodeError", "binascii.Error", "UnicodeError"}
)
FAILED = "the handler failed on this request"
FIELDS = ("body", "data")
LONGEST = 1 << 16  # bytes of an answer in which an error is looked for: some send a whole trace
WORDS = re.compile(r"error|exception|traceback|fail|invalid|unable|can ?not|can't|could not|unsupported|not supported", re.I)
DECODER_ERRORS = (OSError, EOFError, SyntaxError, struct.error)  # what Pillow raises for a damaged picture


def verdict(error: BaseException, bad_input: Collection[str], fields: Collection[str]) -> SlotError:
    """What the one request gets that made theirs raise: never a trace, and a message only where it was meant for the client.

    bad_input: further exceptions that tell of it. fields: what the request consists of.
    """
    try:
        return _verdict(error, bad_input, fields)
    except KeyboardInterrupt:
        raise
    except BaseException:  # an exception of theirs that cannot be looked at
        return ModelFault(FAILED)


def _verdict(error: BaseException, bad_input: Collection[str], fields: Collection[str]) -> SlotError:
    if meant := predicted(error):
        return meant
    if isinstance(error, WrongAnswer):
        return ModelFault("the handler did not give one answer to this request")
    if tells_of_bad_input(error, bad_input):
        return BadRequest(f"the handler cannot read this request ({type(error).__name__})")
    if isinstance(error, TypeError | AttributeError | LookupError) and not set(FIELDS) & set(fields):
        return BadRequest("the request has no field that is called body or data, and the handler cannot do without")
    return ModelFault(FAILED)


def tells_of_bad_input(error: BaseException, more: Collection[str] = ()) -> bool:
    """Whether an error is about what was sent. more: further classes, as "Name" or "module.Name"."""
    if isinstance(error, KeyError):
        return bool(error.args) and type(error.args[0]) is str and error.args[0] in FIELDS
    for kind in type(error).__mro__:
        if {kind.__name__, f"{kind.__module__}.{kind.__name__}"} & {*BAD_INPUT, *more}:
            return True
    return isinstance(error, DECODER_ERRORS) and _raised_in(error).startswith("PIL.")


def _raised_in(error: BaseException) -> str:
    """The module whose code raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__", "")) if trace is not None else ""


def predicted(error: Any) -> SlotError | None:
    """Both servers' own exception for handlers: its code and message are the client's. None where it is another one."""
    if "PredictionException" not in (kind.__name__ for kind in type(error).__mro__):
        return None
    code = getattr(error, "error_code", 500)
    answer = SlotError(text(getattr(error, "message", FAILED)))
    answer.code = code if type(code) is int and 400 <= code <= 599 else 500
    return answer


def one_for_all(answers: Sequence[Owned | SlotError]) -> bool:
    """Whether an error among these answers to several requests may be another request's.

    All are errors; or several say the same, and that is one. An error's status may be the first one's only: a handler that
    sets it for the request on which it failed, and does not say which that is, has set it for the first.
    """
    given = [answer for answer in answers if isinstance(answer, Owned)]
    if len(given) < 2:
        return False
    failed = [answer.status >= 400 for answer in given]
    if all(failed) or (failed[0] and not any(failed[1:])):
        return True
    bodies = [answer.body for answer in given if len(answer.body) <= LONGEST]
    if len(set(bodies)) == len(bodies):
        return False
    alike = Counter(bodies)
    return any(alike[answer.body] > 1 and tells_of_an_error(answer) for answer in given)


def tells_of_an_error(answer: Owned) -> bool:
    """Whether an answer's status, or what it says, is that something has failed."""
    if answer.status >= 400:
        return True
    if answer.tensor or len(answer.body) > LONGEST:
        return False
    text = answer.body.decode("utf-8", "replace")
    if WORDS.search(text) is None:
        return False
    try:
        return _tells(json.loads(text))
    except (ValueError, RecursionError):
        return True


def _tells(value: Any) -> bool:
    """Whether there is such a word in a text, or as the name of what is not empty."""
    if isinstance(value, str):
        return WORDS.search(value) is not None
    if isinstance(value, dict):
        return any(_tells(part) or (part and WORDS.search(name)) for name, part in value.items())
    return isinstance(value, list) and any(map(_tells, value))
