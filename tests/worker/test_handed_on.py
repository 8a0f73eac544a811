"""What one of TorchServe's methods leaves for a later one, in whatever way, is of the request that it was left for."""

from __future__ import annotations

import functools
import heapq
import queue
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from slotwise.worker import Settings, TorchServeHandler
from slotwise.worker.familiar import torchserve_handler
from slotwise.worker.familiar.handed_on import effects_of, handed_on
from slotwise.worker.familiar.uses import METHODS, Effects
from slotwise.worker.padding import KINDS
from tests.worker.leaving import NOTES, Base, Keeper, as_json
from tests.worker.toy import ask, begin

torch = pytest.importorskip("torch")

NOW: ContextVar[str] = ContextVar("NOW")
STATE = {"name": ""}


def put_into(names: list[str], name: str) -> None:
    names.append(name)


def first_of(names: list[Any]) -> Any:
    return names[0]


class Outer:
    def __init__(self) -> None:
        self.keeper = Keeper()

    def note(self, name: str) -> None:
        self.keeper.note(name)

    def told(self) -> str:
        return self.keeper.told()


@dataclass
class Fields:
    names: list[str] = field(default_factory=list)
    name: str = ""


class NestedList(Base):
    def prepare(self) -> None:
        self.made = [[]]

    def keep(self, name: str) -> None:
        self.made[0].append(name)

    def told(self) -> str:
        return str(self.made[0].pop(0))


class AnArray(Base):
    def prepare(self) -> None:
        self.made = np.zeros(16, "U16")

    def keep(self, name: str) -> None:
        self.made[0] = name

    def told(self) -> str:
        return str(self.made[0])


class ACopiedArray(AnArray):
    def keep(self, name: str) -> None:
        np.copyto(self.made, name)


class ATensor(Base):
    def prepare(self) -> None:
        self.made = torch.zeros(16, dtype=torch.int64)

    def keep(self, name: str) -> None:
        torch.add(torch.tensor([*name.encode(), *[0] * (16 - len(name))]), 0, out=self.made)

    def told(self) -> str:
        return bytes(self.made.tolist()).rstrip(b"\0").decode()


class ATensorsMethod(ATensor):
    def keep(self, name: str) -> None:
        self.made.copy_(torch.tensor([*name.encode(), *[0] * (16 - len(name))]))


class AnObject(Base):
    def prepare(self) -> None:
        self.made = Keeper()

    def keep(self, name: str) -> None:
        self.made.note(name)

    def told(self) -> str:
        return str(self.made.told())


class WhatAnObjectGives(AnObject):
    def keep(self, name: str) -> None:
        self.made.all().append(name)


class AnObjectWithin(AnObject):
    def prepare(self) -> None:
        self.made = Outer()


class ObjectsInADict(Base):
    def prepare(self) -> None:
        self.made = {"a": Keeper()}

    def keep(self, name: str) -> None:
        self.made["a"].note(name)

    def told(self) -> str:
        return str(self.made["a"].told())


class BoundMethods(Base):
    def prepare(self) -> None:
        keeper = Keeper()
        self.note, self.tell = keeper.note, keeper.told

    def keep(self, name: str) -> None:
        self.note(name)

    def told(self) -> str:
        return self.tell()


class AFieldOfAnObject(Base):
    def prepare(self) -> None:
        self.made = Fields()

    def keep(self, name: str) -> None:
        self.made.name = name

    def told(self) -> str:
        return str(self.made.name)


class TheClass(Base):
    def keep(self, name: str) -> None:
        type(self).shared.append(name)

    def told(self) -> str:
        return self.shared.pop(0)


class TheClassByName(Base):
    def keep(self, name: str) -> None:
        TheClassByName.made = name

    def told(self) -> str:
        return str(self.__class__.made)


class AModule(Base):
    def keep(self, name: str) -> None:
        NOTES.append(name)

    def told(self) -> str:
        return NOTES.pop(0)


class AModulesDict(Base):
    def keep(self, name: str) -> None:
        STATE["name"] = name

    def told(self) -> str:
        return STATE["name"]


class AModulesVariable(Base):
    def keep(self, name: str) -> None:
        global STATE
        STATE = {"name": name}

    def told(self) -> str:
        return STATE["name"]


class AContextVariable(Base):
    def keep(self, name: str) -> None:
        STATE["name"] = name
        NOW.set(name)

    def told(self) -> str:
        return STATE["name"]


class AThreadsOwn(Base):
    def prepare(self) -> None:
        self.made = threading.local()
        self.named = queue.SimpleQueue[str]()

    def keep(self, name: str) -> None:
        self.named.put(name)

    def told(self) -> str:
        name = ""
        while not self.named.empty():  # of one that failed another may still be there
            name = self.named.get()
        return name


class AHeap(Base):
    def keep(self, name: str) -> None:
        heapq.heappush(self.made, name)

    def told(self) -> str:
        return str(heapq.heappop(self.made))


class AnAlias(Base):
    def keep(self, name: str) -> None:
        if (names := self.made) is not None:
            others = names
            others.append(name)

    def told(self) -> str:
        return str(self.made.pop(0))


class ALoopsAlias(NestedList):
    def keep(self, name: str) -> None:
        for names in self.made:
            names += [name]


class AnAliasByAMethod(Base):
    def names(self) -> Any:
        return self.made

    def keep(self, name: str) -> None:
        self.names().append(name)

    def told(self) -> str:
        return str(self.names().pop(0))


class AnAliasByAProperty(Base):
    @property
    def names(self) -> Any:
        return self.made

    def keep(self, name: str) -> None:
        self.names.append(name)

    def told(self) -> str:
        return str(self.made.pop(0))


class TwoNames(Base):
    def keep(self, name: str) -> None:
        self.other = self.made
        self.other.append(name)

    def told(self) -> str:
        return str(self.made.pop(0))


class AnArgument(Base):
    def keep(self, name: str) -> None:
        put_into(self.made, name)

    def told(self) -> str:
        return str(first_of([self.made.pop(0)]))


class AnInnerFunction(Base):
    def keep(self, name: str) -> None:
        def put(names: list[str]) -> None:
            names.append(name)

        put(self.made)

    def told(self) -> str:
        return str(self.made.pop(0))


class Itself(Base):
    def keep(self, name: str) -> None:
        keep_in(self, name)

    def told(self) -> str:
        return str(self.made)


def keep_in(handler: Any, name: str) -> None:
    handler.made = name


class SetByName(Base):
    def keep(self, name: str) -> None:
        which = "ma" + "de"
        setattr(self, which, name)

    def told(self) -> str:
        return str(self.made)


class ReadByName(Base):
    def keep(self, name: str) -> None:
        self.made = name

    def told(self) -> str:
        return str(getattr(self, "ma" + "de"))


class ItsDict(Base):
    def keep(self, name: str) -> None:
        vars(self)["made"] = name

    def told(self) -> str:
        return str(self.__dict__["made"])


class AClosure(Base):
    def prepare(self) -> None:
        names: list[str] = []
        self.note = lambda name: names.append(name)
        self.tell = lambda: names.pop(0)

    def keep(self, name: str) -> None:
        self.note(name)

    def told(self) -> str:
        return self.tell()


class APartial(Base):
    def prepare(self) -> None:
        self.made = []
        self.note = functools.partial(put_into, self.made)

    def keep(self, name: str) -> None:
        self.note(name)

    def told(self) -> str:
        return str(self.made.pop(0))


class BySuper(NestedList):
    def keep(self, name: str) -> None:
        super().keep(name)

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return Base.preprocess(self, data)


class Decorated(NestedList):
    @torch.no_grad()
    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return super().preprocess(data)


class PartsOfOne(Base):
    """One memory has two names, or one object."""

    def prepare(self) -> None:
        self.made = np.zeros((2, 1), "U16")
        self.head = self.made[:1]

    def keep(self, name: str) -> None:
        self.made[0, 0] = name

    def told(self) -> str:
        return str(self.head[0, 0])


class PartsOfATensor(ATensorsMethod):
    def prepare(self) -> None:
        self.both = torch.zeros(2, 16, dtype=torch.int64)
        self.made, self.head = self.both[0], self.both.view(2, 16)[0]

    def told(self) -> str:
        return bytes(self.head.tolist()).rstrip(b"\0").decode()


class OneInAnother(Base):
    def prepare(self) -> None:
        self.made = []
        self.all_of_them = {"a": self.made}

    def keep(self, name: str) -> None:
        self.made.append(name)

    def told(self) -> str:
        return str(self.all_of_them["a"].pop(0))


class APartialOfAnObject(Base):
    def prepare(self) -> None:
        self.made = Fields()
        self.note = functools.partial(set_name, self.made)

    def keep(self, name: str) -> None:
        self.note(name)

    def told(self) -> str:
        return str(self.made.name)


def set_name(of: Fields, name: str) -> None:
    of.name = name


class AQueueOfOnes(Base):
    def prepare(self) -> None:
        self.made = [queue.SimpleQueue[str]()]

    def keep(self, name: str) -> None:
        self.made[0].put(name)

    def told(self) -> str:
        name = ""
        while not self.made[0].empty():
            name = self.made[0].get()
        return name


class AModel(torch.nn.Module):
    def forward(self, data: Any) -> Any:
        self.names = [["four", "alice", "bob"][{4: 0, 5: 1, 3: 2}.get(int(row[0]), 0)] for row in data.tolist()]
        return data


class NoSource(Base):
    def told(self) -> str:
        return str(self.made)


exec("def keep(self, name):\n    self.made = name\n\nNoSource.keep = keep")

HERE = [kind for kind in Base.__subclasses__() if kind.__module__ == __name__]
WAYS = [kind for kind in HERE for kind in (kind, *kind.__subclasses__())]


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("padding", KINDS)
def test_what_is_left_for_a_request_is_in_no_other_answer(kind: type[Base], padding: str) -> None:
    for batches in (
        [["alice2"], ["alice2", "bob", "carolsecret"], ["d", "d", "bob", "e", "alice2"]],
        [["bad"], ["bob"], ["early", "d", "bad", "bob"], ["wrong"], ["d"], ["d", "wrong", "e"], ["bob", "early", "e"]],
        [["bob", "d", "e", "bad", "wrong", "alice2", "carolsecret", "bob"]],
    ):
        handler = begin(kind(), Settings(batch_size=4, padding=padding))
        for bodies in batches:
            answers = ask(handler, bodies, as_json(len(bodies)))
            wanted = [{"bad": 400, "early": 400, "wrong": 500}.get(body, [body, float(len(body))]) for body in bodies]
            assert [answer.value if answer.code == 200 else answer.code for answer in answers] == wanted
        assert handler.max_rows == 1


class Ordinary(Base):
    """What handlers do that keep nothing of a request."""

    def prepare(self) -> None:
        self.device, self.size, self.mapping = torch.device("cpu"), (2, 2), {"3": "three", "4": "four"}
        self.tokens, self.counted, self.words = Tokens(), 0, {"a": 1}
        self.model = torch.nn.Identity()
        self.half = None

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        rows = []
        for row in data:
            row["seen"] = True
            numbers = self.tokens.encode(row["body"])
            numbers.append(0)
            rows.append(numbers[:1] * self.size[0])
        self.counted += 1
        batch = torch.tensor(rows, dtype=torch.float32, device=self.device)
        scaled(batch)
        return batch

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        self.runs.append(len(data))
        self.half = self.half or torch.nn.Identity()
        data = data.to(self.device)
        data += 0
        with torch.no_grad():
            return self.half(self.model(data))

    def postprocess(self, data: Any) -> Any:
        found = self.mapping.get(str(int(data[0][0])), "many")
        answer = {"name": found, "size": list(self.size), "words": self.tokens.decode([1])}
        answer.update(device=str(self.device))
        return [answer]


def scaled(batch: Any) -> None:
    batch.mul_(1.0)


class Tokens:
    def __init__(self) -> None:
        self.known = {"a": 1}

    def encode(self, text: str) -> list[int]:
        return [len(text)]

    def decode(self, tokens: list[int]) -> list[str]:
        return [name for name, number in self.known.items() if number in tokens]


def test_who_keeps_nothing_runs_in_batches() -> None:
    handler = begin(Ordinary(), Settings(batch_size=4))
    assert handed_on(effects_of(handler, TorchServeHandler)) == set()
    bodies = ["aaa", "aaaa", "a", "aa"]
    answers = ask(handler, bodies, as_json(4))
    assert [answer.value["name"] for answer in answers] == ["three", "four", "many", "many"]
    assert handler.runs[-1] == 4


def test_a_model_that_keeps_something_for_postprocess() -> None:
    class Kept(Base):
        def prepare(self) -> None:
            self.model = AModel()

        def keep(self, name: str) -> None:
            pass

        def told(self) -> str:
            return str(self.model.names[0])

        def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
            return self.model(data)

    handler = begin(Kept(), Settings(batch_size=4))
    answers = ask(handler, ["four", "alice", "bob"], as_json(3))
    assert [answer.value[0] for answer in answers] == ["four", "alice", "bob"]


def test_what_its_source_does_not_show_is_seen_when_it_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchserve_handler, "effects_of", lambda *of: {method: Effects() for method in METHODS})

    class Hidden(Base):
        def keep(self, name: str) -> None:
            self.made = name

        def told(self) -> str:
            return str(self.made)

    handler = begin(Hidden(), Settings(batch_size=4))
    assert handler.max_rows is None
    answers = ask(handler, ["d", "bob", "e"], as_json(3))
    assert [answer.value[0] for answer in answers] == ["d", "bob", "e"]
    assert handler.max_rows == 1


class FilledByNumpy(Base):
    """Has numpy write into an array that is the third argument."""

    def prepare(self) -> None:
        self.made = np.zeros(1)

    def keep(self, name: str) -> None:
        np.add(np.ones(1), float(len(name)), self.made)

    def told(self) -> str:
        return str(self.made[0])


def test_an_array_that_numpy_is_told_to_write_into_is_changed() -> None:
    handler = begin(FilledByNumpy(), Settings(batch_size=4))
    assert handed_on(effects_of(handler, TorchServeHandler)) == {"made"}
    assert handler.max_rows == 1
