"""Handlers that keep something of a request for its answer, in ways whose source says little; and those that keep nothing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import functools
import io
import logging
import queue
import sqlite3
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import prometheus_client
import pytest
from PIL import Image

from tests.worker.idioms.asked import apart, each_of, no_answer_is_wrong, together
from tests.worker.leaving import Base, Keeper

torch = pytest.importorskip("torch")

NAMES = ("alice2", "bob", "carolsecret", "d", "bad", "early", "wrong")  # of these three fail, in three ways
logger = logging.getLogger("tests.idioms")


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass(slots=True)
class Fields:
    names: list[str] = dataclasses.field(default_factory=list)


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
class APicture(Base):
    """Draws into a picture that was made once."""

    def prepare(self) -> None:
        self.made = Image.new("L", (16, 1))

    def keep(self, name: str) -> None:
        self.made.putdata([*name.encode().ljust(16, b"\0")])

    def told(self) -> str:
        return self.made.tobytes().rstrip(b"\0").decode()


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
class AClassmethodsStore(Base):
    """Sets the request of now in a class, by its classmethod."""

    def keep(self, name: str) -> None:
        Current.set(name)

    def told(self) -> str:
        return Current.get()


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


class Plain(Base):
    """Answers with the request's length; nothing of it is kept."""

    def keep(self, name: str) -> None:
        pass

    def told(self) -> str:
        return ""


@together(NAMES)
class Measured(Plain):
    """Takes times and counts for the server's metrics."""

    def keep(self, name: str) -> None:
        start = time.time()
        self.context.metrics.add_time("PreprocessTime", (time.time() - start) * 1000, None, "ms")

    def told(self) -> str:
        self.context.metrics.add_counter("Answers", 1)
        return ""


@together(NAMES)
class Counted(Plain):
    """Counts for Prometheus when a request is read, and when it is answered."""

    def prepare(self) -> None:
        registry = prometheus_client.CollectorRegistry()
        self.counted = prometheus_client.Counter("requests", "Requests", ["at"], registry=registry)
        self.sizes = prometheus_client.Histogram("sizes", "Sizes", registry=registry)

    def keep(self, name: str) -> None:
        self.counted.labels("read").inc()
        self.sizes.observe(len(name))

    def told(self) -> str:
        self.counted.labels("answered").inc()
        return ""


@together(NAMES)
class Logged(Plain):
    """Logs each step, by a logger of the module and by one of its own."""

    def prepare(self) -> None:
        self.log = logging.LoggerAdapter(logging.getLogger("x"), {})

    def keep(self, name: str) -> None:
        self.log.debug("read %s", name)
        logger.debug("read")

    def told(self) -> str:
        self.log.debug("answered")
        logger.debug("answered")
        return ""


@together(NAMES)
class Locked(Plain):
    """Has a lock around what it does."""

    def prepare(self) -> None:
        self.lock = threading.Lock()

    def keep(self, name: str) -> None:
        with self.lock:
            pass

    def told(self) -> str:
        with self.lock:
            return ""


@together(NAMES)
class InAPool(Plain):
    """Works in a pool of threads, whose results it takes at once."""

    def prepare(self) -> None:
        self.pool = ThreadPoolExecutor(1)

    def keep(self, name: str) -> None:
        assert list(self.pool.map(len, [name])) == [len(name)]

    def told(self) -> str:
        return self.pool.submit(str).result()


@together(NAMES)
class MergedOptions(Plain):
    """Makes each request's options of the ones of all, in a copy."""

    def prepare(self) -> None:
        self.made = OrderedDict(top=1, unit="m")

    def keep(self, name: str) -> None:
        own = {**self.made, "top": len(name)}
        own.update(unit=name)
        other = self.made.copy()
        other["top"] = 2

    def told(self) -> str:
        return str(self.made["unit"])


@together(NAMES)
class MadeWhenNeeded(Plain):
    """Makes its network at the first request."""

    network: Any = None

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        if self.network is None:
            self.network = torch.nn.Identity()
        return self.network(super().inference(data))


@each_of(__name__)
def test_no_answer_is_wrong(kind: type[Base], rows_at_once: list[int]) -> None:
    no_answer_is_wrong(kind, rows_at_once)
