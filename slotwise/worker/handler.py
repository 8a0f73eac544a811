"""What a handler's author overrides: how a request becomes items, and how a row of output becomes an answer.

The pipeline calls these hooks (pipeline.py), and whatever one of them does costs only the requests that it was called for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from slotwise.worker.budget import Cost
from slotwise.worker.handler_metrics import HandlerMetrics
from slotwise.worker.request import Headers, Request
from slotwise.worker.settings import Settings
from slotwise.worker.slot_errors import SlotError


class BatchHandler:
    """Override `load`, `decode`, `predict`, `encode`; most handlers need one or two of them.

    max_rows: the most rows that run at once (None: the batch_size of the registration). settings and engine are there once
    `load` has returned. metrics: `count(name, value)` and `time(name, ms)` export numbers of your own.
    """

    max_rows: ClassVar[int | None] = None

    settings: Settings
    engine: Any

    def load(self, model_dir: Path, settings: Settings) -> Any:
        """Once, when the worker starts: return the engine, a callable [b, ...] -> [b, ...]."""
        from slotwise.worker.engines import load_engine  # noqa: PLC0415  brings the engine

        return load_engine(model_dir, settings, self)

    def example(self) -> Any | None:
        """One valid item: for the warm-up, and to tell a bad input from a dead engine. None: there is no such item."""
        shape = self.model.get("input", {}).get("shape")
        return np.zeros(shape, np.float32) if shape else None

    def cost(self, body: bytes, headers: Headers) -> Cost | None:
        """What decoding this body will take, told before it is decoded; over its share it never is. None: no idea."""
        return None

    def read(self, request: Request) -> list[Any]:
        """One request's items, where `decode` of its body is not enough: override it to see form fields and query.

        Several parts of one name are an item each. Runs in a pool of threads: touch nothing but the arguments.
        """
        if request.unclear:
            raise request.unclear
        if not request.more:
            return self.decode(request.body, request.headers)
        return [item for body in request.bodies for item in self._items_or_error(body, request.headers)]

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        """One body's items (or a SlotError in a record's place); raise a SlotError to refuse the whole body.

        Runs in a pool of threads: touch nothing but the arguments.
        """
        raise NotImplementedError

    def groups(self, items: Sequence[Any]) -> list[list[int]]:
        """Which rows run together: every index of `items` exactly once. Groups over max_rows are cut later."""
        step = self.max_rows or self.settings.batch_size
        return [list(range(start, min(start + step, len(items)))) for start in range(0, len(items), step)]

    def collate(self, items: list[Any]) -> Any:
        """Items of one group to the engine's input: [b, ...]."""
        return np.stack(items)

    def predict(self, inputs: Any) -> Any:
        """[b, ...] to exactly b outputs, one a row, in order; or a tuple or dict of arrays, each with b rows."""
        return self.engine(inputs)

    def encode(self, output: Any, item: Any) -> Any:
        """One row's output to one result that JSON can say."""
        if isinstance(output, dict):
            return {name: _plain(value) for name, value in output.items()}
        return [_plain(value) for value in output] if isinstance(output, tuple) else _plain(output)

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        """One request's results (a SlotError in a failed record's place) to its body and content type.

        The body may be bytes, str, or anything that JSON can say.
        """
        if len(results) == 1:
            if isinstance(results[0], SlotError):
                raise results[0]
            return results[0], "application/json"
        return [r.body() if isinstance(r, SlotError) else r for r in results], "application/json"

    def response_headers(self) -> dict[str, str]:
        """Headers that every answer of this model carries."""
        return {}

    # Not to be overridden --------------------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The model's description, as in its model.toml."""
        return self.settings.model

    @cached_property
    def metrics(self) -> HandlerMetrics:
        """Numbers of the author's own; the host exports them."""
        return HandlerMetrics()

    @classmethod
    def entry_point(cls) -> Callable[[Sequence[Any] | None, Any], list[bytes]]:
        """The module-level `handle` of an archive, for both servers: MMS hides the failed initialize of a class."""
        from slotwise.worker.hosts.entry_point import EntryPoint  # noqa: PLC0415  a host imports the handler

        return EntryPoint(cls()).handle

    def _items_or_error(self, body: bytes, headers: Headers) -> list[Any]:
        try:
            return self.decode(body, headers)
        except SlotError as error:
            return [error]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
