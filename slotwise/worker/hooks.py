"""Call an author's hooks for one request, one row or one slot. Whatever a hook does wrong becomes that one's SlotError.

Only a KeyboardInterrupt passes through, because it comes from the operator. An author's `sys.exit()` is a failure like any
other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slotwise.worker.answer import Answer, CheckedHeaders, checked, json_safe, serialise, sound
from slotwise.worker.budget import Cost, total
from slotwise.worker.inputs import packed
from slotwise.worker.outputs import WrongCount, on_host, rows_of
from slotwise.worker.padding import pad_rows
from slotwise.worker.request import Request
from slotwise.worker.slot_errors import BadRequest, DeadlineExceeded, ModelFault, OutOfMemory, SlotError

if TYPE_CHECKING:
    from slotwise.worker.handler import BatchHandler

logger = logging.getLogger(__name__)


class Hooks:
    """One handler's hooks. Each method returns what the hook gave, or a SlotError; only `attempt` may raise.

    estimates, responds: whether the author has a hook `cost`, `respond`.
    """

    def __init__(self, handler: BatchHandler, max_response_bytes: int) -> None:
        self.handler = handler
        self.max_response_bytes = max_response_bytes
        own = _overridden(handler)
        self.estimates, self.responds = "cost" in own, "respond" in own

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

    def _cost(self, body: bytes, request: Request) -> Any:
        try:
            return self.handler.cost(body, request.headers)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return sound(error) if isinstance(error, SlotError) else None

    def decode(self, request: Request) -> list[Any] | SlotError:
        """The request's items, or the error that it is answered with."""
        try:
            if request.deadline_s is not None and time.time() > request.deadline_s:
                return DeadlineExceeded("the deadline had passed when the request was read")
            items = self.handler.read(packed.plain(request))
            if isinstance(items, list):
                if len(items) == 1 and not isinstance(items[0], SlotError):  # nearly every request
                    return items
                return [sound(item) if isinstance(item, SlotError) else item for item in items]
            logger.error("request %s: decode gave %s, not a list", request.id, type(items).__name__)
            return ModelFault("the handler's decode did not return a list")
        except BaseException as error:  # in a thread of its own: no interrupt arrives here
            if isinstance(error, SlotError):
                return sound(error)
            if isinstance(error, MemoryError):
                return OutOfMemory("the body does not fit into memory once decoded")
            logger.warning("request %s could not be decoded", request.id, exc_info=True)
            return BadRequest("the body could not be decoded")

    def attempt(self, items: list[Any], size: int) -> list[Any]:
        """Run the model once on `items` padded to `size` rows: one output or SlotError an item. May raise anything."""
        inputs = self.handler.collate(pad_rows(items, size, items[-1]))
        return rows_of(on_host(self.handler.predict(inputs)), size, len(items))  # b = size

    def encode(self, output: Any, item: Any, request: Request) -> Any:
        """One row's result."""
        try:
            result = self.handler.encode(output, item)
            return sound(result) if isinstance(result, SlotError) else result
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, SlotError):
                return sound(error)
            logger.warning("request %s: an output could not be encoded", request.id, exc_info=True)
            return ModelFault("the model's output could not be encoded")

    def headers(self) -> CheckedHeaders | SlotError:
        """The headers of every answer."""
        try:
            return checked(self.handler.response_headers())
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            logger.exception("response_headers() failed")
            return error if type(error) is ModelFault else ModelFault("the handler's response headers failed")

    def answer(self, request: Request, results: list[Any], headers: CheckedHeaders) -> Answer | SlotError:
        """One slot's answer. A result that cannot be written as JSON is an error in its own place."""
        try:
            try:
                return self._answer(request, results, headers)
            except (ValueError, TypeError, RecursionError):
                return self._answer(request, [json_safe(result) for result in results], headers)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, SlotError):
                return sound(error)
            logger.warning("request %s: the answer could not be encoded", request.id, exc_info=True)
            return ModelFault("the answer could not be encoded")

    def _answer(self, request: Request, results: Sequence[Any], headers: CheckedHeaders) -> Answer:
        body, content_type = self.handler.respond(packed.plain(request) if self.responds else request, list(results))
        content = serialise(body)
        if len(content) > self.max_response_bytes:  # the server would end the worker, and with it the whole batch
            raise ModelFault(f"the answer has {len(content)} bytes, but the server sends at most {self.max_response_bytes}")
        return Answer(200, content_type, content, headers)

    def alive(self, size: int) -> bool:
        """Whether the engine still runs the warm-up input."""
        try:
            item = self.handler.example()
            if item is not None:
                self.attempt([item], size)
            return True
        except KeyboardInterrupt:
            raise
        except WrongCount:  # a wrong number of outputs, but it runs
            return True
        except BaseException:
            logger.exception("the warm-up input fails")
            return False

    def release(self) -> None:
        """Let the engine free what a failed call holds."""
        free = getattr(self.handler.engine, "release", None)
        if callable(free):
            free()


def _overridden(handler: BatchHandler) -> set[str]:
    """The names that the author's classes define, without those of BatchHandler."""
    kinds = type(handler).__mro__
    return {name for kind in kinds[: [k.__name__ for k in kinds].index("BatchHandler")] for name in vars(kind)}
