"""Strangers who reuse what they return, change what they get and keep what they saw: nobody gets what was not theirs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import mms.context
import pytest
import torch
import ts.context
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.worker.guard.batches import Guard
from tests.worker.strangers import Slot, ask, context, guard

pytestmark = pytest.mark.usefixtures("quiet")

MOST = 7
SLOTS = {"torchserve": ts.context.RequestProcessor, "mms": mms.context.RequestProcessor}
WRONG = ("raise", "tuple", "generator", "dict", "none", "short", "long", "shared", "exit", "odd")


@dataclass
class Stranger:
    """A handler of somebody who knows of no guard.

    answers: what a slot's answer is. reuses: it is the same object in every call, filled anew. changes: bodies and headers
    are changed. keeps: everything seen is kept, and changed in later calls. early: fails before the other answers are filled.
    """

    answers: str
    reuses: bool
    changes: bool
    keeps: bool
    early: bool
    kept: list[Any] = field(default_factory=list)
    calls: int = 0

    def __post_init__(self) -> None:
        self.buffers = [self.new() for _ in range(MOST)]
        self.returned: list[Any] = []

    def new(self) -> Any:
        kinds = {"dict": dict, "list": list, "bytearray": bytearray, "nested": lambda: {"in": [[]]}}
        return kinds[self.answers]() if self.answers in kinds else torch.zeros(2)

    def filled(self, answer: Any, name: str) -> Any:
        if self.answers == "dict":
            answer.clear()
            answer["for"] = name
        elif self.answers == "list":
            answer[:] = [name]
        elif self.answers == "bytearray":
            answer[:] = name.encode()
        elif self.answers == "nested":
            answer["in"][0][:] = [name]
        else:
            answer.fill_(sum(map(ord, name)))
        return answer

    def handle(self, data: Any, context: Any) -> Any:
        self.calls += 1
        self.spoil()
        names = [name_of(row["body"]) for row in data]
        how = next((name[4:] for name in names if name.startswith("bad ")), "")
        if self.keeps:
            self.kept += [*data, *context.request_processor, context.request_processor, data]
        if how and self.early:
            return self.wrong(how, [])
        answers = self.buffers[: len(data)] if self.reuses else [self.new() for _ in data]
        for i, (answer, name) in enumerate(zip(answers, names, strict=True)):
            self.filled(answer, name)
            context.set_response_header(i, "x-for", f"{name} {context.get_request_header(i, 'x-own')}")
            if len(name) % 2:
                context.set_response_status(201, "Made", i)
            if self.changes:
                change(data[i])
                context.get_all_request_header(i).clear()
        if self.reuses:
            self.returned[:] = answers
            answers = self.returned
        self.kept += answers if self.keeps and not self.reuses else []
        return self.wrong(how, answers) if how else answers

    def spoil(self) -> None:
        for thing in self.kept:
            if hasattr(thing, "report_status"):
                thing.report_status(299, "Spoiled")
                thing.add_response_property("x-for", "spoiled")
                thing.get_request_properties().clear()
            elif isinstance(thing, dict):
                change(thing)
            elif isinstance(thing, bytearray):
                thing[:] = b"spoiled"

    def wrong(self, how: str, answers: list[Any]) -> Any:
        if how == "raise":
            raise ValueError
        if how == "exit":
            raise SystemExit
        odd = [object()] if len(answers) == 1 else None
        shared = [answers[0]] * len(answers) if len(answers) > 1 else None
        other = {"tuple": tuple(answers), "generator": iter(answers), "dict": dict(enumerate(answers)), "short": answers[:-1]}
        return {**other, "none": None, "long": [*answers, *range(MOST + 1)], "odd": odd, "shared": shared}[how]


def name_of(body: Any) -> str:
    return str(body["name"]) if isinstance(body, dict) else bytes(body).decode()


def change(row: Any) -> None:
    body = row.get("body")
    if isinstance(body, dict):
        body["name"] = "changed"
    elif isinstance(body, bytearray):
        body[:] = b"changed"
    row["body"] = b"changed"


def sent(name: str, kind: str) -> Any:
    kinds = {"bytes": name.encode(), "bytearray": bytearray(name.encode()), "json": {"name": name, "more": [[1], {}]}}
    return {"body": kinds[kind]}


NAMES = st.one_of(st.text("abc", min_size=1, max_size=3), st.sampled_from([f"bad {how}" for how in WRONG]))
BODIES = st.tuples(NAMES, st.sampled_from(["bytes", "bytearray", "json"]))
STRANGERS = st.builds(
    lambda answers, flags: (answers, *flags),
    st.sampled_from(["dict", "list", "bytearray", "nested", "tensor"]),
    st.tuples(*[st.booleans()] * 4),
)


@cache
def worker(kind: str) -> Any:
    """A worker's context: it stays the same from batch to batch."""
    return context(kind, [])


def asked(guarded: Guard, bodies: list[tuple[str, str]], kind: str) -> list[Slot]:
    headers = [{"x-own": f"of {name}", "deep": {"of": name}} for name, _ in bodies]
    raw, new = worker(kind), SLOTS[kind]
    raw.request_processor = [new(one) for one in headers]
    raw.request_ids = {i: f"id-{i}" for i in range(len(bodies))}
    return ask(guarded, [sent(*body) for body in bodies], kind, raw=raw)


def nobody_gets_anothers(terms: Any, batches: list[list[tuple[str, str]]], kind: str) -> None:
    guarded = guard(Stranger(*terms).handle)
    for bodies in batches:
        slots = asked(guarded, bodies, kind)
        assert slots == [asked(guard(Stranger(*terms).handle), [body], kind)[0] for body in bodies]
        for (name, _), slot in zip(bodies, slots, strict=True):
            assert (slot.status >= 400) == name.startswith("bad ")
            assert slot.headers.get("x-for", f"{name} of {name}") == f"{name} of {name}"
            if slot.status < 400 and terms[0] != "tensor":
                assert json.dumps(name).strip('"') in slot.body.decode()


BATCHES = st.lists(st.lists(BODIES, min_size=1, max_size=MOST), min_size=1, max_size=3)
TRIED = given(STRANGERS, BATCHES, st.sampled_from(["torchserve", "mms"]))


@TRIED
@settings(max_examples=200, deadline=None)
def test_no_client_gets_what_its_request_alone_would_not_have_got(terms: Any, batches: Any, kind: str) -> None:
    nobody_gets_anothers(terms, batches, kind)


@pytest.mark.long
@TRIED
@settings(max_examples=10_000, deadline=None)
def test_nor_in_ten_thousand_tries(terms: Any, batches: Any, kind: str) -> None:
    nobody_gets_anothers(terms, batches, kind)
