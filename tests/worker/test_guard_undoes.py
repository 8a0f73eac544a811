"""What a call that failed has left, in whatever depth, is in no answer of its second try."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.worker.strangers import ask, guard

NAMES: list[str] = []


class Keeper:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.inner: Any = None


class Stranger:
    """Gathers names in a call, and answers with those that it has gathered."""

    names: list[str]

    def __init__(self) -> None:
        type(self).names, self.made, self.last = [], self.prepared(), None
        NAMES.clear()

    def prepared(self) -> Any:
        return None

    def add(self, name: str) -> None:
        raise NotImplementedError

    def taken(self) -> list[str]:
        raise NotImplementedError

    def handle(self, data: Any, context: Any) -> list[Any]:
        self.context = context
        for row in data:
            self.add(row["body"].decode())
            if row["body"] == b"bad":
                raise ValueError
        if len(data) > 1 and any(row["body"] == b"same" for row in data):
            one: list[str] = []
            return [one] * len(data)
        return self.taken()


class TheClass(Stranger):
    def add(self, name: str) -> None:
        type(self).names.append(name)

    def taken(self) -> list[str]:
        taken, type(self).names = self.names, []
        return taken


class AModule(Stranger):
    def add(self, name: str) -> None:
        NAMES.append(name)

    def taken(self) -> list[str]:
        taken = list(NAMES)
        NAMES.clear()
        return taken


class ListInADict(Stranger):
    def prepared(self) -> Any:
        return {"names": []}

    def add(self, name: str) -> None:
        self.made["names"].append(name)

    def taken(self) -> list[str]:
        taken, self.made["names"] = self.made["names"], []
        return list(taken)


class DefaultDict(ListInADict):
    def prepared(self) -> Any:
        return defaultdict(list)


class Ordered(ListInADict):
    def prepared(self) -> Any:
        return OrderedDict(names=[])


class AUserDict(ListInADict):
    def prepared(self) -> Any:
        return UserDict(names=[])


class Named(dict[str, Any]):
    pass


class ADictOfItsOwn(ListInADict):
    def prepared(self) -> Any:
        return Named(names=[])


class AnArray(Stranger):
    def prepared(self) -> Any:
        return [0, np.zeros(16, "U8")]

    def add(self, name: str) -> None:
        self.made[1][self.made[0]] = name
        self.made[0] += 1

    def taken(self) -> list[str]:
        taken = [str(name) for name in self.made[1][: self.made[0]]]
        self.made[0] = 0
        return taken


class AnObject(Stranger):
    def prepared(self) -> Any:
        keeper = Keeper()
        keeper.inner = Keeper()
        return keeper

    def add(self, name: str) -> None:
        self.made.inner.names.append(name)

    def taken(self) -> list[str]:
        taken, self.made.inner.names = self.made.inner.names, []
        return list(taken)


@dataclass(slots=True)
class Slots:
    names: list[str] = field(default_factory=list)


class InSlots(Stranger):
    def prepared(self) -> Any:
        return Slots()

    def add(self, name: str) -> None:
        self.made.names.append(name)

    def taken(self) -> list[str]:
        taken, self.made.names = self.made.names, []
        return list(taken)


class ANamespace(InSlots):
    def prepared(self) -> Any:
        return SimpleNamespace(names=[])


@dataclass(frozen=True)
class Frozen:
    name: str = ""

    def add(self, name: str) -> None:
        object.__setattr__(self, "name", f"{self.name} {name}")


class InWhatIsFrozen(Stranger):
    def prepared(self) -> Any:
        return Frozen()

    def add(self, name: str) -> None:
        self.made.add(name)

    def taken(self) -> list[str]:
        taken = self.made.name.split()
        object.__setattr__(self.made, "name", "")
        return list(taken)


class TheContext(Stranger):
    def add(self, name: str) -> None:
        self.context.names = [*getattr(self.context, "names", []), name]

    def taken(self) -> list[str]:
        taken, self.context.names = self.context.names, []
        return list(taken)


class FirstNone(Stranger):
    def add(self, name: str) -> None:
        self.last = name if self.last is None else self.last + " " + name

    def taken(self) -> list[str]:
        taken, self.last = (self.last or "").split(" "), None
        return taken


@pytest.mark.parametrize("kind", [*Stranger.__subclasses__(), *ListInADict.__subclasses__(), *InSlots.__subclasses__()])
def test_what_a_failed_call_has_left_is_in_no_answer(kind: type[Stranger]) -> None:
    guarded = guard(kind().handle)
    for bodies in ([b"a", b"b", b"bad", b"c"], [b"bad"], [b"d"], [b"bad", b"e"], [b"same", b"f"], [b"g", b"h"]):
        slots = ask(guarded, bodies)
        for body, slot in zip(bodies, slots, strict=True):
            assert slot.status == (500 if body == b"bad" else 200)
            assert body in (b"bad", b"same") or slot.body == body


def test_what_is_made_when_it_is_first_needed_is_made_as_a_whole() -> None:
    class Lazy:
        model: Any = None

        def handle(self, data: Any, context: Any) -> list[Any]:
            if self.model is None:
                self.model, self.labels, self.device = Keeper(), ["label"], "cpu"
            if any(row["body"] == b"bad" for row in data):
                raise ValueError
            return [f"{self.labels[0]} {self.device}"] * len(data)

    guarded = guard(Lazy().handle)
    assert [slot.status for slot in ask(guarded, [b"bad", b"a"])] == [500, 200]
    assert [slot.body for slot in ask(guarded, [b"b"])] == [b"label cpu"]


def test_what_a_failed_call_has_put_into_the_lists_of_a_dict_that_was_empty_is_undone() -> None:
    class Turns:
        def __init__(self) -> None:
            self.turns: dict[str, list[bytes]] = defaultdict(list)

        def handle(self, data: Any, context: Any) -> list[Any]:
            answers = []
            for row in data:
                self.turns["ann"].append(bytes(row["body"]))
                if row["body"] == b"bad":
                    raise ValueError
                answers.append(str(len(self.turns["ann"])))
            return answers

    guarded = guard(Turns().handle)
    assert [slot.body for slot in ask(guarded, [b"a"])] == [b"1"]
    assert [slot.body for slot in ask(guarded, [b"b", b"c", b"bad"])][:2] == [b"2", b"3"]
    assert [slot.body for slot in ask(guarded, [b"d"])] == [b"4"]


def test_a_dict_that_keeps_its_order_is_whole_after_calls_that_failed() -> None:
    class Recent:
        def __init__(self) -> None:
            self.recent = OrderedDict[str, int]()

        def handle(self, data: Any, context: Any) -> list[Any]:
            answers = []
            for row in data:
                self.recent[row["body"].decode()] = 1
                self.recent.move_to_end(row["body"].decode())
                if row["body"].startswith(b"bad"):
                    raise ValueError
                answers.append(" ".join(islice(self.recent, 9)))
                while len(self.recent) > 2:
                    self.recent.popitem(last=False)
            return answers

    guarded = guard(Recent().handle)
    for bodies in ([b"a", b"b"], [b"bad one", b"c"], [b"a", b"bad two"], [b"b", b"c", b"bad one", b"a"]):
        slots = ask(guarded, bodies)
        assert [slot.status for slot in slots] == [500 if body.startswith(b"bad") else 200 for body in bodies]
    assert [slot.body for slot in ask(guarded, [b"b", b"a"])] == [b"c a b", b"b a"]
