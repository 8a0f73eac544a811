"""Who is asked again is asked as if the first time had not been: nothing is kept of it, counted twice, or hidden by it."""

from __future__ import annotations

import json
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.worker import BatchHandler, Headers, Settings
from slotwise.worker.guard.batches import Guard
from tests.worker.strangers import ask as ask_guard
from tests.worker.strangers import guard
from tests.worker.toy import ask, begin

TRIED = Settings(batch_size=8, proof_s=60.0)
USERS = ["ann", "bob", "ann", "cem", "bob", "dan"]
LISTS = [[float(i)] * (1 + i % 4) for i in range(1, 7)]


class Stranger:
    """Has a state, and answers JSON bodies one after the other."""

    def __init__(self) -> None:
        self.state = self.new()

    def new(self) -> Any:
        raise NotImplementedError

    def one(self, body: Any, mates: Sequence[Any]) -> Any:
        raise NotImplementedError

    def handle(self, data: Sequence[Any], context: Any) -> list[Any]:
        bodies = [row["body"] for row in data]
        return [self.one(body, bodies) for body in bodies]


class SaysWhatIsNew(Stranger):
    def new(self) -> Any:
        return set()

    def one(self, body: Any, mates: Sequence[Any]) -> Any:
        new = body not in self.state
        self.state.add(body)
        return {"new": new}


class SaysWhatWasCached(Stranger):
    def new(self) -> Any:
        return {}

    def one(self, body: Any, mates: Sequence[Any]) -> Any:
        cached = body in self.state
        return {"cached": cached, "length": self.state.setdefault(body, len(body))}


class CountsTurns(Stranger):
    def new(self) -> Any:
        return defaultdict(list)

    def one(self, body: Any, mates: Sequence[Any]) -> Any:
        self.state[body].append(len(self.state))
        return {"turn": len(self.state[body]), "before": self.state[body][-3:]}


class NumbersItsAnswers(Stranger):
    def new(self) -> Any:
        return 0

    def one(self, body: Any, mates: Sequence[Any]) -> Any:
        self.state += 1
        return {"id": f"answer-{self.state:05d}", "length": len(body)}


class MovesAWindow(Stranger):
    def new(self) -> Any:
        return np.zeros(5)

    def one(self, body: Any, mates: Sequence[Any]) -> Any:
        self.state[:-1] = self.state[1:]
        self.state[-1] = len(body)
        return {"mean": float(self.state.mean())}


class Sessions(Stranger):
    """An object of its own for each user."""

    class Session:
        def __init__(self) -> None:
            self.turns = Counter[str]()

    def new(self) -> Any:
        return {}

    def one(self, body: Any, mates: Sequence[Any]) -> Any:
        turns = self.state.setdefault(body, self.Session()).turns
        turns[body] += 1
        return {"turn": turns[body]}


def looking(stranger: Stranger, looks: bool = True) -> Guard:
    guarded = guard(stranger.handle)
    if looks:
        guarded.look_at_first_answers(60.0)
    return guarded


def answers(guarded: Guard, bodies: Sequence[Any]) -> list[Any]:
    return [slot.value for slot in ask_guard(guarded, bodies)]


STATES = [SaysWhatIsNew, SaysWhatWasCached, CountsTurns, NumbersItsAnswers, MovesAWindow, Sessions]


@pytest.mark.parametrize("kind", STATES)
def test_a_handler_that_remembers_answers_as_if_nobody_were_asked_again(kind: type[Stranger]) -> None:
    guarded, unlooked = looking(kind()), looking(kind(), looks=False)
    for start in range(6):
        bodies = [*USERS[start:], f"new {'x' * start}", *USERS[:start]]
        assert answers(guarded, bodies) == answers(unlooked, bodies)
    assert guarded.together


class PadsAndKeeps(Stranger):
    """Takes the mean over the longest mate's length, and keeps it by the body."""

    def new(self) -> Any:
        return OrderedDict()

    def one(self, body: Any, mates: Sequence[Any]) -> Any:
        if (key := json.dumps(body)) not in self.state:
            self.state[key] = sum(body) / max(map(len, mates))
        self.state.move_to_end(key)
        return {"mean": self.state[key]}


class KeepsInAnObject(PadsAndKeeps):
    class Memory:
        def __init__(self) -> None:
            self.known: dict[str, float] = {}

    def new(self) -> Any:
        return self.Memory()

    def one(self, body: Any, mates: Sequence[Any]) -> Any:
        return {"mean": self.state.known.setdefault(json.dumps(body), sum(body) / max(map(len, mates)))}


@pytest.mark.parametrize("kind", [PadsAndKeeps, KeepsInAnObject])
def test_what_is_kept_by_the_body_hides_from_nobody_that_rows_are_mixed(kind: type[Stranger]) -> None:
    guarded = looking(kind())
    for _ in range(2):
        assert answers(guarded, [{"body": body} for body in LISTS]) == [{"mean": sum(one) / len(one)} for one in LISTS]
    assert not guarded.together


class LoadsWhenNeeded(Stranger):
    """Makes a model for each word at the first request that has it."""

    made = 0

    def new(self) -> Any:
        return {}

    def one(self, body: Any, mates: Sequence[Any]) -> Any:
        if body not in self.state:
            type(self).made += 1
            self.state[body] = lambda: body
        return {"says": self.state[body]()}


def test_what_is_made_when_it_is_needed_is_made_once() -> None:
    guarded = looking(LoadsWhenNeeded())
    LoadsWhenNeeded.made = 0
    assert answers(guarded, USERS) == [{"says": user} for user in USERS]
    assert answers(guarded, USERS) == [{"says": user} for user in USERS]
    assert LoadsWhenNeeded.made == 4


class Remembers(BatchHandler):
    """A handler of ours with a state. Its items are what is in the body."""

    item: Any = None

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.state = self.new()
        return self.run

    def new(self) -> Any:
        return {}

    def run(self, items: list[Any]) -> Any:
        raise NotImplementedError

    def example(self) -> Any:
        return self.item

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [json.loads(body)]

    def collate(self, items: list[Any]) -> Any:
        return items


class SaysWhatItHad(Remembers):
    def run(self, items: list[Any]) -> Any:
        given = []
        for item in items:
            given.append({"cached": item in self.state, "length": len(item)})
            self.state[item] = True
        return given


class CountsInEncode(Remembers):
    def new(self) -> Any:
        return 0

    def run(self, items: list[Any]) -> Any:
        return [{"length": len(item)} for item in items]

    def encode(self, output: Any, item: Any) -> Any:
        self.state += 1
        return {**output, "answer": self.state}


class CountsForEach(Remembers):
    def new(self) -> Any:
        return Counter()

    def run(self, items: list[Any]) -> Any:
        given = []
        for item in items:
            self.state[item] += 1
            given.append({"turn": self.state[item]})
        return given


@pytest.mark.parametrize("item", [None, "eve"])
@pytest.mark.parametrize("kind", [SaysWhatItHad, CountsInEncode, CountsForEach])
def test_a_handler_of_ours_that_remembers_answers_as_if_nobody_were_asked_again(
    kind: type[Remembers], item: Any, tmp_path: Path
) -> None:
    looks, unlooked = kind(), kind()
    looks.item = item
    begin(looks, TRIED, tmp_path)
    begin(unlooked, TRIED.but(proof_s=0.0), tmp_path)
    for start in range(6):
        bodies = [*USERS[start:], f"new {'x' * start}", *USERS[:start]]
        assert [one.value for one in ask(looks, bodies)] == [one.value for one in ask(unlooked, bodies)]


class PadsAndRemembers(Remembers):
    """Takes the mean over the longest mate's length, and keeps it by the item."""

    def run(self, items: list[Any]) -> Any:
        for item in items:
            self.state.setdefault(tuple(item), sum(item) / max(map(len, items)))
        return [[self.state[tuple(item)]] for item in items]


@pytest.mark.parametrize("item", [None, [3.0, 4.0]])
def test_what_is_kept_by_the_item_hides_from_nobody_that_rows_are_mixed(item: Any, tmp_path: Path) -> None:
    handler = PadsAndRemembers()
    handler.item = item
    begin(handler, TRIED, tmp_path)
    for _ in range(2):
        assert [one.value for one in ask(handler, LISTS)] == [[sum(one) / len(one)] for one in LISTS]
    assert handler.max_rows == 1


class KeepsRight(Remembers):
    """What it keeps is each item's own."""

    def run(self, items: list[Any]) -> Any:
        return [[self.state.setdefault(tuple(item), sum(item))] for item in items]


class MakesFunctions(Remembers):
    """Makes a function for each size of a batch, which takes a while."""

    made = 0

    def run(self, items: list[Any]) -> Any:
        if len(items) not in self.state:
            type(self).made += 1
            time.sleep(0.01)
            self.state[len(items)] = lambda rows: [[sum(row)] for row in rows]
        return self.state[len(items)](items)


@pytest.mark.parametrize("kind", [KeepsRight, MakesFunctions])
@pytest.mark.parametrize("item", [None, [3.0, 4.0]])
def test_what_is_kept_and_mixes_nothing_goes_in_batches(kind: type[Remembers], item: Any, tmp_path: Path) -> None:
    handler = kind()
    handler.item, MakesFunctions.made = item, 0
    begin(handler, TRIED, tmp_path)
    for _ in range(3):
        assert [one.value for one in ask(handler, LISTS)] == [[sum(one)] for one in LISTS]
    assert handler.max_rows is None
    assert MakesFunctions.made <= 8


class CountsForMetrics(Remembers):
    def run(self, items: list[Any]) -> Any:
        self.metrics.count("rows", len(items))
        return [[sum(item)] for item in items]


def test_what_is_asked_again_is_counted_once(tmp_path: Path) -> None:
    handler = begin(CountsForMetrics(), TRIED, tmp_path)
    ask(handler, LISTS[:1])  # how outputs are read is learned
    ask(handler, LISTS)
    handler.metrics.take()
    ask(handler, LISTS)
    assert [value.value for value in handler.metrics.take()] == [6.0]
