"""Handlers as authors write them are asked here: each request alone, then in batches of strangers. No answer is ever wrong.

What is right is what the handler's own methods give where one request has a new handler to itself, in the order of TorchServe.
Beside each handler stands how its requests go: `together` in batches, or `apart`, one after the other, where a method leaves
something of a request for a later one. So a change that lets strangers meet is red, and one that has everybody run alone, too.
"""

from __future__ import annotations

import copy
import decimal
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slotwise.worker import Settings
from slotwise.worker.familiar.threads_context import context_of
from tests.support.seed import SEED
from tests.worker.toy import ask, begin

SIZES = (4, 1, 8, 3, 8)  # of the batches that are sent to each handler
NAMES = ("alice2", "bob", "carolsecret", "d", "bad", "early", "wrong")  # for leaving.Base: three of them fail, in three ways
ERROR = "an error"  # in the place of an answer that is one

Kind = type[Any]


@dataclass(frozen=True)
class Idiom:
    """How a handler's requests go, and what they are. late: those of a kind that comes only when others have come for long."""

    apart: bool
    bodies: Sequence[Any]
    late: Sequence[Any] = ()


def together(bodies: Sequence[Any], late: Sequence[Any] = ()) -> Callable[[Kind], Kind]:
    """A handler whose requests run in batches."""
    return _noted(Idiom(False, bodies, late))


def apart(bodies: Sequence[Any], late: Sequence[Any] = ()) -> Callable[[Kind], Kind]:
    """A handler whose requests run one after the other."""
    return _noted(Idiom(True, bodies, late))


def _noted(idiom: Idiom) -> Callable[[Kind], Kind]:
    def note(kind: Kind) -> Kind:
        kind.idiom = idiom  # type: ignore[attr-defined]
        assert kind.__doc__, f"{kind.__name__} does not say which idiom it is"
        return kind

    return note


def idioms_in(module: str) -> list[Kind]:
    """The handlers of a module, in its order."""
    return [kind for kind in vars(sys.modules[module]).values() if isinstance(kind, type) and "idiom" in vars(kind)]


def headers_of(body: Any) -> dict[str, str]:
    """What a request is sent with: as JSON, and its x-lang also as a header."""
    said = {"x-lang": body["x-lang"]} if isinstance(body, dict) and "x-lang" in body else {}
    return {"content-type": "application/json", **said}


def right(kind: Kind, body: Any) -> Any:
    """What a new handler's own methods make of one request, in one thread."""
    with decimal.localcontext():
        return copy_context().run(_right, kind, body)


def _right(kind: Kind, body: Any) -> Any:
    handler = kind()
    handler.context = context_of(Path("."), Settings())
    handler.initialize(handler.context)
    with handler.context.speaking_of([headers_of(body)]):
        try:
            (answer,) = handler.postprocess(handler.inference(handler.preprocess([{"body": copy.deepcopy(body)}])))
        except Exception:
            return ERROR
    answer = answer.tolist() if hasattr(answer, "tolist") else answer
    return _parsed(answer) if isinstance(answer, str) else json.loads(json.dumps(answer))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def alike(one: Any, other: Any) -> bool:
    """Whether two answers say the same; their numbers may differ as much as kernels for several rows do."""
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-4)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    return bool(one == other)


class Asked:
    """A handler that is asked, and what it owes to each body."""

    def __init__(self, kind: Kind, rows_at_once: list[int]) -> None:
        self.kind, self.rows_at_once = kind, rows_at_once
        self.idiom: Idiom = kind.idiom  # type: ignore[attr-defined]
        self.right = {json.dumps(body): right(kind, body) for body in (*self.idiom.bodies, *self.idiom.late)}
        self.chance = random.Random(f"{SEED} {kind.__name__}")
        self.handler = self.new()

    def new(self) -> Any:
        """Another one of it, which has answered nobody yet."""
        return begin(self.kind(), Settings(batch_size=8, proof_s=60.0))

    def ask(self, bodies: Sequence[Any]) -> None:
        """One batch, of which each has what is right."""
        answers = ask(self.handler, bodies, {i: headers_of(body) for i, body in enumerate(bodies)})
        for i, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
            given = _parsed(answer.body.decode()) if answer.code == 200 else ERROR
            owed = self.right[json.dumps(body)]
            assert alike(given, owed), f"{i}: {body} of {bodies} is answered {answer.code} {answer.body!r}, not {owed}"

    def some(self, size: int, bodies: Sequence[Any]) -> list[Any]:
        """So many of these bodies, by chance."""
        return [self.chance.choice(bodies) for _ in range(size)]

    def runs_as_expected(self) -> None:
        """Rows of one form run at once, or no two rows do."""
        self.rows_at_once.clear()
        self.ask([self.idiom.bodies[0]] * 4)
        assert max(self.rows_at_once) == (1 if self.idiom.apart else 4)
        assert (self.handler.max_rows == 1) is self.idiom.apart


def no_answer_is_wrong(kind: Kind, rows_at_once: list[int]) -> None:
    """The handler's answers are right alone, and in batches; first of all its usual requests, then also the late ones."""
    asked = Asked(kind, rows_at_once)
    owed = [asked.right[json.dumps(body)] for body in (*asked.idiom.late, *asked.idiom.bodies)]
    assert not all(alike(owed[0], one) for one in owed), "whose answer is whose would not be seen"
    asked.ask(asked.idiom.bodies[:1])
    asked.handler = asked.new()
    for size in SIZES:
        asked.ask(asked.some(size, asked.idiom.bodies))
    if asked.idiom.late:
        for _ in range(4):  # no first call of any method is a late one's
            asked.ask(asked.some(8, asked.idiom.bodies))
        for _ in range(3):
            batch = [*asked.some(5, asked.idiom.bodies), *asked.some(3, asked.idiom.late)]
            asked.chance.shuffle(batch)
            asked.ask(batch)
    asked.runs_as_expected()


def each_of(module: str) -> pytest.MarkDecorator:
    """A test of each handler of a module."""
    return pytest.mark.parametrize("kind", idioms_in(module), ids=lambda kind: kind.__name__)
