"""Handlers that keep something of a request for its answer in a queue, a thread, a database, a class or the context."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import logging
import queue
import sqlite3
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from tests.worker.idioms.asked import NAMES, apart, each_of, no_answer_is_wrong
from tests.worker.leaving import Base

logger = logging.getLogger("tests.idioms")


class Colour(enum.Enum):
    RED = 1


class Descriptor:
    """Keeps what is set in a place of its own."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def __get__(self, owner: Any, kind: type) -> str:
        return self.values.pop(0)

    def __set__(self, owner: Any, value: str) -> None:
        self.values.append(value)


class Current:
    """The request of now, as web frameworks have it."""

    _named = {"name": ""}  # noqa: RUF012  as authors write it

    @classmethod
    def set(cls, name: str) -> None:
        cls._named["name"] = name

    @classmethod
    def get(cls) -> str:
        return cls._named["name"]


@apart(NAMES)
class AConnectedLogger(Base):
    """Tells a LoggerAdapter whose request is logged, and answers with it."""

    def prepare(self) -> None:
        self.log = logging.LoggerAdapter(logger, {"name": ""})

    def keep(self, name: str) -> None:
        self.log.extra["name"] = name  # type: ignore[index]

    def told(self) -> str:
        return str(self.log.extra["name"])  # type: ignore[index]


@apart(NAMES)
class AnEnumsAttribute(Base):
    """Sets an attribute of an enum's member."""

    def keep(self, name: str) -> None:
        Colour.RED.current = name  # type: ignore[attr-defined]

    def told(self) -> str:
        return str(Colour.RED.current)  # type: ignore[attr-defined]


@apart(NAMES[:4])
class ADescriptor(Base):
    """Sets an attribute that a descriptor of the class keeps elsewhere."""

    current = Descriptor()

    def prepare(self) -> None:
        type(self).__dict__["current"].values.clear()

    def keep(self, name: str) -> None:
        self.current = name

    def told(self) -> str:
        return str(self.current)


@apart(NAMES)
class AQueue(Base):
    """Hands the request on through a queue."""

    def prepare(self) -> None:
        self.made = queue.Queue()

    def keep(self, name: str) -> None:
        self.made.put(name)

    def told(self) -> str:
        return str(self.made.get(timeout=1))


@apart(NAMES)
class AGeneratorsState(Base):
    """Sends the request to a generator that remembers it."""

    def prepare(self) -> None:
        self.made = self.remembering()
        next(self.made)

    def remembering(self) -> Generator[str, str, None]:
        name = ""
        while True:
            name = (yield name) or name

    def keep(self, name: str) -> None:
        self.made.send(name)

    def told(self) -> str:
        return str(next(self.made))


@apart(NAMES)
class AContextManager(Base):
    """Keeps the request within a `with` of its own."""

    def prepare(self) -> None:
        self.made = {"names": []}

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        self.made["names"].append(name)
        yield

    def keep(self, name: str) -> None:
        with self.of(name):
            pass

    def told(self) -> str:
        return str(self.made["names"].pop(0))


@apart(NAMES)
class ACoroutine(Base):
    """Keeps the request in a coroutine that asyncio runs."""

    def prepare(self) -> None:
        self.made = {"names": []}

    async def note(self, name: str) -> None:
        self.made["names"].append(name)

    def keep(self, name: str) -> None:
        asyncio.run(self.note(name))

    def told(self) -> str:
        return str(self.made["names"].pop(0))


@apart(NAMES)
class AnotherThread(Base):
    """Keeps the request in a thread of a pool."""

    def prepare(self) -> None:
        self.pool, self.made = ThreadPoolExecutor(1), {"names": []}

    def note(self, name: str) -> None:
        self.made["names"].append(name)

    def keep(self, name: str) -> None:
        list(self.pool.map(self.note, [name]))

    def told(self) -> str:
        return str(self.made["names"].pop(0))


@apart(NAMES)
class AClassmethodsStore(Base):
    """Sets the request of now in a class, by its classmethod."""

    def keep(self, name: str) -> None:
        Current.set(name)

    def told(self) -> str:
        return Current.get()


class Traced:
    """A decorator that is a class, and notes what was called with."""

    names: ClassVar[list[str]] = []

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, owner: Any, kind: type) -> Any:
        return functools.partial(self.call, owner)

    def call(self, owner: Any, name: str) -> Any:
        self.names[:] = [name]
        return self.function(owner, name)


@apart(NAMES)
class ATracer(Base):
    """A decorator notes its call, and the answer has that."""

    @Traced
    def keep(self, name: str) -> None:
        pass

    def told(self) -> str:
        return Traced.names[0]


@apart(NAMES)
class ThePropertiesOfTheSystem(Base):
    """Keeps the request in what the server says of itself."""

    def keep(self, name: str) -> None:
        self.context.system_properties["current"] = name

    def told(self) -> str:
        return str(self.context.system_properties["current"])


@apart(NAMES)
class ByTheRequestsId(Base):
    """Keeps each request under its id, and answers the last one."""

    def prepare(self) -> None:
        self.made = {}

    def keep(self, name: str) -> None:
        self.made[self.context.get_request_id(0)] = name

    def told(self) -> str:
        return list(self.made.values())[-1]


@apart(NAMES[:4])
class ADatabase(Base):
    """Puts the request into a table, and takes the first one out of it."""

    def prepare(self) -> None:
        self.made = sqlite3.connect(":memory:", check_same_thread=False)
        self.made.execute("create table names(name text)")

    def keep(self, name: str) -> None:
        self.made.execute("insert into names values(?)", (name,))

    def told(self) -> str:
        (name,) = self.made.execute("select name from names order by rowid").fetchone()
        self.made.execute("delete from names where rowid = (select min(rowid) from names)")
        return str(name)


@each_of(__name__)
def test_no_answer_is_wrong(kind: type[Base], rows_at_once: list[int]) -> None:
    no_answer_is_wrong(kind, rows_at_once)
