"""The hooks that a handler's author overrides: how a request becomes items, and how a row of output becomes an answer.

The pipeline calls them (pipeline.py, hooks.py). Whatever a hook does wrong costs only the requests that it was called for.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from slotwise.worker.budget import Cost
from slotwise.worker.environment.settings import Settings
from slotwise.worker.familiar.handed_on import look_at_what_is_kept
from slotwise.worker.padding import stacked
from slotwise.worker.reports.handler_metrics import HandlerMetrics
from slotwise.worker.request import Headers, Request
from slotwise.worker.slot_errors import SlotError, Unavailable


class BatchHandler:
    """The base class of every handler. Override `load`, `decode`, `predict`, `encode`; most handlers need one or two of them.

    max_rows: the most rows that run at once; None means the batch_size of the registration. settings: how this worker is to
    run, and model_dir: the folder of the extracted archive, both set before `load`. engine: what `load` returned. metrics:
    numbers of your own, by `metrics.count(name, value)` and `metrics.time(name, ms)`. predict_until: the time on the monotonic
    clock after which the batch that runs has none left for the model; infinite where nobody waits.
    """

    max_rows: ClassVar[int | None] = None
    streams: bool = False  # a StreamHandler's do
    raw_numbers: bool = False  # beside a `decode`: bodies that are exactly the input's numbers never come to it

    settings: Settings
    model_dir: Path = Path()
    engine: Any
    predict_until: float = math.inf
    _read_alone_since: float | None = None  # on time.monotonic(): when a `read` that keeps all others out began
    _reads_alone: bool = False  # whether one request is read at a time: what `read` leaves on the handler is of that one
    _one_at_a_time: threading.Lock
    _host: ClassVar[Callable[[BatchHandler], Any]]  # makes the entry point; slotwise.worker sets it: hosts import this module

    def load(self, model_dir: Path, settings: Settings) -> Any:
        """Load the engine, once, when the worker starts: a callable from [b, ...] to [b, ...].

        model_dir: the folder of the extracted archive. May raise anything: the worker then does not start.
        """
        from slotwise.worker.engines import load_engine  # noqa: PLC0415  brings the engine

        return load_engine(model_dir, settings, self)

    def example(self) -> Any | None:
        """One valid item, for the warm-up and to tell a bad input from a dead engine; None where there is none."""
        shape = self.model.get("input", {}).get("shape")
        return np.zeros(shape, np.float32) if shape else None

    def cost(self, body: bytes, headers: Headers) -> Cost | None:
        """Estimate what decoding this body will take; None where that is unknown.

        It is called before anything is decoded, and must be much quicker than decoding. A body that would take more than its
        share of `decode_budget_ms` is answered with 413 and never decoded. Touch nothing but the arguments.
        """
        return None

    def read(self, request: Request) -> list[Any]:
        """Turn one request into items. Override it where the body is not enough: to see a form's fields, or the query.

        By default it calls `decode` for the body, and for every part where a form has several parts of the body's name.
        Raise a SlotError to refuse the whole request. Runs in a pool of threads: touch nothing but the arguments.
        """
        if request.unclear:
            raise request.unclear
        if not request.more:
            return self.decode(request.body, request.headers)
        return [item for body in request.bodies for item in self._items_or_error(body, request.headers)]

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        """Turn one body into items: one, many or none. A SlotError in an item's place is that record's answer.

        Raise a SlotError (usually BadRequest) to refuse the whole body. Runs in a pool of threads: touch nothing but the
        arguments.
        """
        raise NotImplementedError

    def groups(self, items: Sequence[Any]) -> list[list[int]]:
        """Say which rows run together: lists of indices of `items`, every index exactly once.

        A group of more than max_rows rows is cut later. By default rows run in order, max_rows at a time.
        """
        step = self.max_rows or self.settings.batch_size
        return [list(range(start, min(start + step, len(items)))) for start in range(0, len(items), step)]

    def collate(self, items: list[Any]) -> Any:
        """Turn the items of one group into the engine's input: [b, ...]. By default `numpy.stack`."""
        return stacked(items)

    def predict(self, inputs: Any) -> Any:
        """Run the engine: [b, ...] to exactly b outputs, one a row, in order.

        A model with several outputs gives a tuple or dict of arrays, each with b rows. It may raise anything: the rows that
        make it fail are found, and only they are answered with 500.
        """
        return self.engine(inputs)

    def encode(self, output: Any, item: Any) -> Any:
        """Turn one row's output into one result that can be written as JSON. Raise a SlotError to refuse it.

        item: what `decode` gave, with what `collate` or `predict` noted on it. Nothing of its mates belongs there: a list that
        is padded in place is as long as the batch's longest.
        """
        if isinstance(output, dict):
            return {name: _plain(value) for name, value in output.items()}
        return [_plain(value) for value in output] if isinstance(output, tuple) else _plain(output)

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        """Turn one request's results into the body of its answer and a content type.

        results: one an item, with a SlotError in the place of a record that failed. The body may be bytes, str, or anything
        that can be written as JSON. By default a single result is the body, and several results are a JSON list.
        """
        if len(results) == 1:
            if isinstance(results[0], SlotError):
                raise results[0]
            return results[0], "application/json"
        return [r.body() if isinstance(r, SlotError) else r for r in results], "application/json"

    def response_headers(self) -> dict[str, str]:
        """Headers for every answer of this model, by name. By default none."""
        return {}

    # Not to be overridden --------------------------------------------------------------------------------------------

    def leaves_for_later(self) -> bool:
        """Whether a hook leaves something of a request where a later hook finds it, as their source says."""
        return look_at_what_is_kept(self, BatchHandler)

    def _read_one_at_a_time(self) -> None:
        """From now on no two requests are read at once."""
        self._reads_alone, self._one_at_a_time = True, threading.Lock()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time, and the pipeline sees since when. Who waits longer than its batch may decode gives up."""
        if not self._one_at_a_time.acquire(timeout=self.settings.response_timeout_s / 4):
            raise Unavailable("there was no time left to decode this body")
        self._read_alone_since = time.monotonic()
        try:
            yield
        finally:
            self._read_alone_since = None
            self._one_at_a_time.release()

    @property
    def model(self) -> Any:
        """The model's description, with the keys of its model.toml."""
        return self.settings.model

    @cached_property
    def metrics(self) -> HandlerMetrics:
        """Numbers of your own; they are exported beside slotwise's. A handler that sets something else here exports none."""
        return HandlerMetrics()

    @classmethod
    def entry_point(cls) -> Callable[[Sequence[Any] | None, Any], list[bytes]]:
        """Make the function that both servers call: `handle = MyHandler.entry_point()` at the end of a handler's file.

        It is a function and not a class, because MMS hides that the `initialize` of a class failed.
        """
        handle: Callable[[Sequence[Any] | None, Any], list[bytes]] = BatchHandler._host(cls()).handle
        return handle

    def _shown_to_model(self, item: Any) -> Any:
        """The part of an item that decides which shape a batch has."""
        return item

    def _items_or_error(self, body: bytes, headers: Headers) -> list[Any]:
        try:
            return self.decode(body, headers)
        except SlotError as error:
            return [error]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
