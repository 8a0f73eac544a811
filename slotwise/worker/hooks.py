"""Call an author's hooks for one request, one row or one slot. Whatever a hook does wrong becomes that one's SlotError.

What a hook returns is owned before any hook is called again (ownership.py), and what it is handed is its own. Only a
KeyboardInterrupt passes through, because it comes from the operator. An author's `sys.exit()` is a failure like any other.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence

import numpy as np

from slotwise.worker.answer import Answer, CheckedHeaders, Refusal, checked, json_safe, serialise, sound
from slotwise.worker.batch import Row
from slotwise.worker.budget import Cost, total
from slotwise.worker.copies import ATOMS
from slotwise.worker.familiar.own_state import kept_by
from slotwise.worker.handler import BatchHandler
from slotwise.worker.inputs import packed
from slotwise.worker.outputs import WrongCount, rows_of, rows_share, ways_to_read
from slotwise.worker.ownership import owned
from slotwise.worker.reports.handler_metrics import HandlerMetrics
from slotwise.worker.request import Request
from slotwise.worker.separability.bits import difference
from slotwise.worker.slot_errors import BadRequest, DeadlineExceeded, ModelFault, OutOfMemory, SlotError

logger = logging.getLogger(__name__)

ENOUGH = 8  # batches of whose rows each was run alone, and had what it shared there, too
ROUNDED = 0.02  # how far a number may be from what it is alone, of the largest


class Hooks:
    """One handler's hooks. Each method returns what the hook gave, or a SlotError; only `attempt` and `good_row` may raise.

    estimates: whether the author has a `cost` hook. way: how the model's outputs are read (outputs.py), "" until that is known.
    """

    def __init__(self, handler: BatchHandler, max_response_bytes: int) -> None:
        self.handler = handler
        self.max_response_bytes = max_response_bytes
        self.estimates = _is_authors(handler, "cost")
        self.groups_are_authors = _is_authors(handler, "groups")
        self.collate_is_authors = _is_authors(handler, "collate")
        self.respond_is_authors = _is_authors(handler, "respond")
        self.way = ""
        self.shared_well = 0  # batches whose outputs shared what was right for all
        self.known_good: object = None  # an item that the model has run, where the author gives no example

    def cost(self, request: Request) -> Cost | SlotError | None:
        """What decoding the request costs, all parts of its form together; None where there is no estimate.

        A body without an estimate is decoded: that shows what it is. One that is packed costs what unpacking it does.
        """
        return self._own_cost(request) or packed.unpacking_cost(request)

    def _own_cost(self, request: Request) -> Cost | SlotError | None:
        """What the author's hook says."""
        if not request.fields:
            cost = self._cost(request.body, request)
            return cost if isinstance(cost, SlotError) else total([cost])
        parts = [part for parts in request.fields.values() for part in parts] or [request.body]
        costs = [self._cost(part, request) for part in parts]
        if len(costs) == 1 and isinstance(costs[0], SlotError):
            return costs[0]
        return total(costs)

    def _cost(self, body: bytes, request: Request) -> object:
        try:
            return self.handler.cost(body, request.headers)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return sound(error) if isinstance(error, SlotError) else None

    def decode(self, request: Request) -> list[object] | SlotError:
        """The request's items, or the error that it is answered with."""
        try:
            if request.is_late:
                return DeadlineExceeded("the deadline had passed when the request was read")
            with self.handler._alone() if self.handler._reads_alone else contextlib.nullcontext():
                items: object = self.handler.read(packed.plain(request))
            if isinstance(items, list):
                return list(map(_own_item, items))
            logger.error("request %s: decode gave %s, not a list", request.id, type(items).__name__)
            return ModelFault("the handler's decode did not return a list")
        except KeyboardInterrupt:  # the operator's, where a caller decodes in its own thread
            raise
        except BaseException as error:
            return undecoded(error, request.id)

    def groups(self, rows: Sequence[Row]) -> list[list[int]]:
        """Which rows run together. May raise anything. The hook gets copies: what it does to them is nothing to the model."""
        items = [owned(row.item) for row in rows] if self.groups_are_authors else [row.item for row in rows]
        return self.handler.groups(items)

    def attempt(self, rows: list[Row], size: int) -> None:
        """Run the model once on these rows padded to `size`, and give each its output or its own error. May raise anything."""
        if not self.way and size > 1:
            self.way = self._learned(rows[0], size)
        outputs = self._predicted(rows, size)
        if not self.way and isinstance(outputs, tuple) and len(ways_to_read(outputs, size)) > 1:
            with contextlib.suppress(Exception):  # a model of one row alone is never read in another way
                self.way = self._learned(rows[0], size + 1)
            outputs = self._predicted(rows, size)  # again: a model may write all it gives into one place
        given = rows_of(outputs, size, len(rows), self.way)
        if len(rows) > 1 and self.shared_well < ENOUGH and rows_share(outputs, len(rows), self.way):
            self._one_by_one(rows, size, given)
        else:
            for row, output in zip(rows, given, strict=True):  # b = size
                row.ran(output)
        if self.known_good is None and rows[0].error is None:
            self.known_good = owned(rows[0].asked)

    def _one_by_one(self, rows: list[Row], size: int, together: list[object]) -> None:
        """Run each row alone: their outputs share something, which may have been filled again for each. May raise anything.

        together: what the model gave for all. What is often the same alone, where rows differ, may be shared.
        """
        for row in rows:
            if time.monotonic() > self.handler.predict_until:
                return
            self.attempt([row], size)
        alone = [row.output if row.error is None else row.error for row in rows]
        if not all(alike(*pair) for pair in zip(alone, together, strict=True)):
            vars(self.handler)["max_rows"] = 1
            logger.warning("the model fills one object again for each row of a batch: from now on rows run one by one")
        elif not all(alike(alone[0], other) for other in alone):
            self.shared_well += 1

    def _predicted(self, rows: list[Row], size: int) -> object:
        """What the model gives for these rows and copies of the last one, `size` in all."""
        handed = self.collate_is_authors or not all(_is_stacked(row.item) for row in rows)
        if handed:  # an author gets the items as they were decoded, whatever was done to those that were handed out before
            for row in rows:
                if row.decoded is None:
                    row.decoded = owned(row.item)
                else:
                    row.item = owned(row.decoded)
        items = [row.item for row in rows]
        if size > len(rows):
            items += [owned(rows[-1].decoded) if handed else rows[-1].item for _ in range(size - len(rows))]
        outputs: object = self.handler.predict(self.handler.collate(items))
        return outputs

    def _learned(self, row: Row, size: int) -> str:
        """How the outputs are read, by what the model gives for one row alone and for `size` copies; nothing of that stays."""
        with kept_by(self.handler).as_before(), self.metrics().as_they_are():
            ways = [self._ways(row, n) for n in (1, size)]
        both = ways[0] & ways[1]
        if len(both) != 1:
            raise WrongCount(None, size)
        return both.pop()

    def _ways(self, row: Row, size: int) -> set[str]:
        copy = Row(row.owner, owned(row.asked))
        return set(ways_to_read(self._predicted([copy], size), size))

    def encode(self, row: Row, request: Request, last: bool) -> object:
        """One row's result, or its Refusal. It is owned, unless it is the `last` before its request is answered."""
        try:
            result: object = self.handler.encode(row.output, row.item)
            if isinstance(result, SlotError):
                return Refusal.of(result)
            return result if last else self.kept(result)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Refusal.of(unencoded(error, request.id))

    def kept(self, result: object) -> object:
        """A result that no later call of a hook changes."""
        try:
            return owned(result)
        except Exception:
            logger.warning("a result cannot be copied", exc_info=True)
            return Refusal.of(ModelFault("the model's output could not be encoded"))

    def headers(self) -> CheckedHeaders | SlotError:
        """The headers of every answer."""
        try:
            return checked(self.handler.response_headers())
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            logger.exception("response_headers() failed")
            return error if type(error) is ModelFault else ModelFault("the handler's response headers failed")

    def answer(self, request: Request, results: list[object], headers: CheckedHeaders) -> Answer | SlotError:
        """One slot's answer. A result that cannot be written as JSON is an error in its own place.

        results: one a record, a Refusal in the place of each that failed.
        """
        try:
            again = results
            if self.respond_is_authors:  # which may change what it gets
                again = [self.kept(result) for result in results]
            try:
                return self._answer(request, results, headers)
            except (ValueError, TypeError, RecursionError):
                return self._answer(request, [json_safe(result) for result in again], headers)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, SlotError):
                return sound(error)
            logger.warning("request %s: the answer could not be encoded", request.id, exc_info=True)
            return ModelFault("the answer could not be encoded")

    def _answer(self, request: Request, results: Sequence[object], headers: CheckedHeaders) -> Answer:
        given = list(results)
        for place, result in enumerate(results):
            if type(result) is Refusal:
                given[place] = result.error()
        body, content_type = self.handler.respond(packed.plain(request) if self.respond_is_authors else request, given)
        content = serialise(body)
        if len(content) > self.max_response_bytes:  # the server would end the worker, and with it the whole batch
            raise ModelFault(f"the answer has {len(content)} bytes, but the server sends at most {self.max_response_bytes}")
        return Answer(200, content_type, content, headers)

    def good_row(self) -> Row | None:
        """A row of the author's example, made anew; None where there is none. May raise anything."""
        item = self.handler.example()
        return None if item is None else Row(0, owned(item))

    def alive(self, size: int) -> bool:
        """Whether the model still runs the author's example, or else an item that it has run before.

        True where there is neither.
        """
        try:
            row = self.good_row() or Row(0, owned(self.known_good))
            if row.item is None:
                return True
            self.attempt([row], size)
        except KeyboardInterrupt:
            raise
        except WrongCount:  # a wrong number of outputs, but it runs
            return True
        except BaseException:
            logger.exception("the model fails on what it is known to run")
            return False
        return row.error is None

    def metrics(self) -> HandlerMetrics:
        """The author's numbers; others where the handler has set something else in their place."""
        own = self.handler.metrics
        return own if isinstance(own, HandlerMetrics) else HandlerMetrics()

    def release(self) -> None:
        """Let the engine free what a failed call holds. May raise anything: after some failures a device frees nothing."""
        free = getattr(self.handler.engine, "release", None)
        if callable(free):
            free()


def undecoded(error: BaseException, name: str) -> SlotError:
    """What a request is answered with whose decoding raised this. name: what the log calls it."""
    if isinstance(error, SlotError):
        return sound(error)
    if isinstance(error, MemoryError):
        return OutOfMemory("the body does not fit into memory once decoded")
    logger.warning("request %s could not be decoded", name, exc_info=error)
    return BadRequest("the body could not be decoded")


def unencoded(error: BaseException, name: str) -> SlotError:
    """What a request is answered with where encoding an output raised this."""
    if isinstance(error, SlotError):
        return error
    logger.warning("request %s: an output could not be encoded", name, exc_info=error)
    return ModelFault("the model's output could not be encoded")


def _is_authors(handler: BatchHandler, hook: str) -> bool:
    """Whether this hook is another than BatchHandler's."""
    return hook in vars(handler) or getattr(type(handler), hook) is not getattr(BatchHandler, hook)


def alike(one: object, other: object) -> bool:
    """Whether these outputs are the same but for rounding."""
    return difference(one, other).relative <= ROUNDED


def _is_stacked(item: object) -> bool:
    """Whether our own `collate` copies this item. Of others, such as dicts, it makes an array that holds them themselves."""
    return type(item) in ATOMS or (type(item) is np.ndarray and not item.dtype.hasobject)


def _own_item(item: object) -> object:
    if isinstance(item, SlotError):
        return sound(item)
    try:
        return owned(item)
    except Exception:
        logger.exception("decode gave a %s that cannot be copied, so it may change", type(item).__name__)
        return ModelFault("what the handler decoded cannot be copied")
