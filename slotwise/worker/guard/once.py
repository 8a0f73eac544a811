"""Answer with a stranger's handler that must not be asked twice: each request goes to it alone, and once.

For handlers that send pieces of their answers, and for those that keep something from one request of a sequence to the next.

With `steps` a handler that sets `context.stopping_criteria` is called again for the same request until that says that it is
over, as TorchServe's continuousBatching calls it: by the request's id, without its row and headers, which it has kept. What
each call gives is a piece.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from slotwise.worker.batch import NOT_RUN
from slotwise.worker.budget import Budget
from slotwise.worker.guard.batches import NO_DEVICE, Guard
from slotwise.worker.guard.blame import verdict
from slotwise.worker.guard.device import device_alive, let_go, release
from slotwise.worker.guard.intermediate import Gone, Intermediate, Take
from slotwise.worker.guard.owned import Owned, one_each, owned
from slotwise.worker.guard.slots import BatchSlots
from slotwise.worker.isolation import is_out_of_memory
from slotwise.worker.slot_errors import ModelFault, OutOfMemory, SlotError

logger = logging.getLogger(__name__)

OnPiece = Callable[[Owned], bool]


def _stops(criteria: Any, result: Any) -> bool:
    """What the request's stopping criterion says of what theirs gave. Raises ModelFault where that is nothing."""
    said = criteria[0](result) if criteria else None
    if said is None:
        raise ModelFault("the handler's stopping criterion says neither that the answer goes on nor that it ends")
    return bool(said)


def _failed(processor: Any) -> bool:
    status = processor.get_response_status_code()
    return isinstance(status, int) and status >= 400


class Once(Guard):
    """See Guard; a request that fails costs its batch-mates nothing, since there are none.

    pieces: what theirs sends before the end. on_piece: takes each, where somebody waits for them, and says whether it was sent;
    it may raise Gone: then theirs is not called again, and runs to its end where it runs. What was not sent is the beginning of
    the answer. steps: theirs is called until it stops. sequence: it keeps what came before, also of a request that failed.
    """

    def __init__(self, *about: Any, pieces: Intermediate, steps: bool = False, sequence: bool = False, **named: Any) -> None:
        super().__init__(*about, **named)
        self.pieces, self.steps, self.sequence = pieces, steps, sequence
        self.on_piece: OnPiece | None = None

    def _outputs(self, slots: BatchSlots) -> list[Owned | SlotError]:
        """What theirs gave, or a SlotError, for each slot."""
        budget = Budget(slots.n, self.response_timeout_s, 0, clock=self.clock)
        return [row if isinstance(row, SlotError) else self._asked(i, slots, budget) for i, row in enumerate(slots.rows)]

    def _asked(self, i: int, slots: BatchSlots, budget: Budget) -> Owned | SlotError:
        if self.dead:
            return NO_DEVICE
        if budget.over(budget.predict_until):
            return NOT_RUN.error()
        rows, kept, size = slots.enter([i]), list[Owned](), 0

        def take(value: Any) -> None:
            nonlocal size
            piece = owned(value, slots.raw.request_processor[0], self.tensors, self.max_response_bytes)
            if isinstance(piece, SlotError):
                raise piece
            size += len(piece.body)
            self._refuse_if_long(size)
            if self.on_piece is None or not self.on_piece(piece):
                kept.append(piece)

        try:
            with nullcontext() if self.sequence else self.undoing(slots.raw):
                result = self._last(rows, slots, take)
            answer = owned(result, slots.raw.request_processor[0], self.tensors, self.max_response_bytes)
            self._refuse_if_long(size + (len(answer.body) if isinstance(answer, Owned) else 0))
            slots.keep()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a stranger's sys.exit() is no reason to end the worker
            slots.drop()
            return self._verdict(error, i, slots)
        return self._whole(kept, answer) if kept and isinstance(answer, Owned) else answer

    def _last(self, rows: list[Any], slots: BatchSlots, take: Take) -> Any:
        """What the last call of theirs gives for one request. take(value): gets what comes before that."""
        raw = slots.raw
        if not self.steps:
            return self._called(rows, raw, take)
        ids, raw.stopping_criteria = dict(raw.request_ids), None
        try:
            result = self._called(rows, raw, take)
            if not raw.stopping_criteria:
                return result
            while not _failed(raw.request_processor[0]) and not _stops(raw.stopping_criteria, result):
                take(result)
                raw.request_ids, raw.request_processor = dict(ids), [type(raw.request_processor[0])({})]
                result = self._called([{}], raw, take)
            return result
        finally:
            raw.stopping_criteria = None
            cache = getattr(raw, "cache", None)
            if isinstance(cache, dict):
                cache.pop(ids[0], None)

    def _called(self, rows: list[Any], raw: Any, take: Take) -> Any:
        """What theirs gives for one request, in one call."""
        with self.pieces.taken(raw.request_ids[0], take):
            return one_each(self.theirs(rows, raw), 1)[0]

    def _verdict(self, error: BaseException, i: int, slots: BatchSlots) -> SlotError:
        """What the request gets on which theirs failed."""
        if not isinstance(error, Gone):
            logger.warning("request %s failed: %s", slots.names[i], type(error).__name__, exc_info=error)
        let_go(error)
        release()
        if not device_alive():
            logger.error("the device is dead: this worker ends")
            self.dead = True
            return NO_DEVICE
        if isinstance(error, SlotError):
            return error
        if is_out_of_memory(error):
            return OutOfMemory("this input alone does not fit into the memory of the model's device")
        return verdict(error, self.bad_input, slots.rows[i])

    def _whole(self, kept: list[Owned], answer: Owned) -> Owned:
        """All pieces in one, as a client of TorchServe has them that waits for the end. Its head is the first call's."""
        body = b"".join([*[one.body for one in kept], answer.body])
        head = kept[0] if self.steps and answer.status < 400 else answer
        return head._replace(body=body, tensor=False)

    def _refuse_if_long(self, size: int) -> None:
        """Raise ModelFault where an answer of so many bytes, or more, cannot be sent."""
        if self.max_response_bytes is not None and size > self.max_response_bytes:
            raise ModelFault(f"the answer has {size} bytes, {self.max_response_bytes} may leave the server")
