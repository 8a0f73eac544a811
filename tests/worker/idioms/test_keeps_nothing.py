"""Handlers that do much and keep nothing of a request: they run in batches."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import prometheus_client
import pytest

from tests.worker.idioms.asked import NAMES, each_of, no_answer_is_wrong, together
from tests.worker.leaving import Base

torch = pytest.importorskip("torch")

logger = logging.getLogger("tests.idioms")


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


class LibrarysLogger(logging.Logger):
    """As nncf has every logger that is made after it was imported."""

    __module__ = "numpy"


librarys_logger = LibrarysLogger("idioms")


@together(NAMES)
class Logged(Plain):
    """Logs each step, by loggers of the module and by one of its own."""

    def prepare(self) -> None:
        self.log = logging.LoggerAdapter(logging.getLogger("x"), {})

    def keep(self, name: str) -> None:
        self.log.debug("read %s", name)
        logger.debug("read")
        librarys_logger.debug("read")

    def told(self) -> str:
        self.log.debug("answered")
        logger.debug("answered")
        librarys_logger.debug("answered")
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
