"""Handlers that keep something of a request for its answer, in ways whose source says little; and those that keep nothing."""

from __future__ import annotations

import dataclasses
import functools
import io
import logging
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from tests.worker.idioms.asked import NAMES, apart, each_of, no_answer_is_wrong
from tests.worker.leaving import Base, Keeper

torch = pytest.importorskip("torch")

logger = logging.getLogger("tests.idioms")


@dataclasses.dataclass(slots=True)
class Fields:
    names: list[str] = dataclasses.field(default_factory=list)


@apart(NAMES)
class ABufferOfBytes(Base):
    """Writes into a bytearray through a memoryview."""

    def prepare(self) -> None:
        self.made = [bytearray(16)]

    def keep(self, name: str) -> None:
        memoryview(self.made[0])[:] = name.encode().ljust(16, b"\0")

    def told(self) -> str:
        return bytes(self.made[0]).rstrip(b"\0").decode()


@apart(NAMES)
class AnArrayUnderATensor(Base):
    """Writes into a numpy array through a tensor that has its memory."""

    def prepare(self) -> None:
        self.made = np.zeros(16, np.int64)

    def keep(self, name: str) -> None:
        view = torch.from_numpy(self.made)
        view[:] = torch.tensor([*name.encode().ljust(16, b"\0")])

    def told(self) -> str:
        return bytes(self.made.tolist()).rstrip(b"\0").decode()


@apart(NAMES)
class ADataFrame(Base):
    """Has the request's values in a DataFrame that was made once."""

    def prepare(self) -> None:
        self.made = pytest.importorskip("pandas").DataFrame({"name": [""]})

    def keep(self, name: str) -> None:
        self.made.at[0, "name"] = name

    def told(self) -> str:
        return str(self.made["name"][0])


@apart(NAMES)
class APropertysStore(Base):
    """Sets a property that keeps it in a list."""

    def prepare(self) -> None:
        self._current = [""]

    @property
    def current(self) -> str:
        return self._current[0]

    @current.setter
    def current(self, name: str) -> None:
        self._current[0] = name

    def keep(self, name: str) -> None:
        self.current = name

    def told(self) -> str:
        return self.current


@apart(NAMES)
class AnObjectWithSlots(Base):
    """Keeps the request in a dataclass with slots."""

    def prepare(self) -> None:
        self.made = Fields()

    def keep(self, name: str) -> None:
        self.made.names.append(name)

    def told(self) -> str:
        return str(self.made.names.pop(0))


@apart(NAMES)
class ANamespace(Base):
    """Keeps the request in a list of a namespace."""

    def prepare(self) -> None:
        self.made = SimpleNamespace(names=[])

    def keep(self, name: str) -> None:
        self.made.names.append(name)

    def told(self) -> str:
        return str(self.made.names.pop(0))


@apart(NAMES)
class AWeakReference(Base):
    """Finds the request's object by a weak dictionary."""

    def prepare(self) -> None:
        self.by_name: weakref.WeakValueDictionary[str, Keeper] = weakref.WeakValueDictionary()
        self.held: dict[str, Keeper] = {}

    def keep(self, name: str) -> None:
        keeper = Keeper()
        keeper.note(name)
        self.by_name["now"] = self.held["now"] = keeper

    def told(self) -> str:
        return self.by_name["now"].all()[0]


@apart(NAMES)
class ACachedProperty(Base):
    """Makes the request's property once, and deletes it when it is answered."""

    @functools.cached_property
    def first(self) -> str:
        return str(self.made[-1])

    def keep(self, name: str) -> None:
        self.made.append(name)
        _ = self.first

    def told(self) -> str:
        name = self.first
        del self.first
        self.made.clear()
        return name


@apart(NAMES)
class ABufferThatIsPrintedTo(Base):
    """Prints the request into a stream of its own."""

    def prepare(self) -> None:
        self.made = [io.StringIO()]

    def keep(self, name: str) -> None:
        self.made[0] = io.StringIO()
        print(name, file=self.made[0], end="")

    def told(self) -> str:
        return str(self.made[0].getvalue())


@apart(NAMES[:4], late=["later", "the latest"])
class OnlySometimes(Base):
    """Keeps only what some requests have, in a list that it has under another name: no first call shows it."""

    def prepare(self) -> None:
        self.made = {"names": []}
        self.table = {"note": self.made["names"].append}

    def keep(self, name: str) -> None:
        if name in ("later", "the latest"):
            self.table["note"](name)

    def told(self) -> str:
        return str(self.made["names"].pop(0)) if self.made["names"] else ""


@each_of(__name__)
def test_no_answer_is_wrong(kind: type[Base], rows_at_once: list[int]) -> None:
    no_answer_is_wrong(kind, rows_at_once)
