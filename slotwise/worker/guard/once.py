"""Answer with a stranger's handler that must not be asked twice: each request goes to it alone, and once.

For handlers that send pieces of their answers, and for those that keep something from one request of a sequence to the next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from slotwise.worker.guard.batches import NO_DEVICE, Guard
from slotwise.worker.guard.blame import verdict
from slotwise.worker.guard.device import device_alive, let_go, release
from slotwise.worker.guard.intermediate import Intermediate
from slotwise.worker.guard.owned import Owned, one_each, owned
from slotwise.worker.guard.slots import BatchSlots
from slotwise.worker.isolation import is_out_of_memory
from slotwise.worker.slot_errors import ModelFault, OutOfMemory, SlotError

logger = logging.getLogger(__name__)

OnPiece = Callable[[Owned], bool]


class Gone(BaseException):
    """Nobody waits for the answer any more: theirs is left where it sends its next piece. No Exception: it may catch those."""


class Once(Guard):
    """See Guard; a request that fails costs its batch-mates nothing, since there are none.

    pieces: what theirs sends before the end. on_piece: takes each, where somebody waits for them, and says whether it was sent;
    it may raise Gone. What was not sent is the beginning of the answer.
    """

    def __init__(self, *about: Any, pieces: Intermediate, **named: Any) -> None:
        super().__init__(*about, **named)
        self.pieces = pieces
        self.on_piece: OnPiece | None = None

    def _outputs(self, slots: BatchSlots) -> list[Owned | SlotError]:
        """What theirs gave, or a SlotError, for each slot."""
        return [row if isinstance(row, SlotError) else self._asked(i, slots) for i, row in enumerate(slots.rows)]

    def _asked(self, i: int, slots: BatchSlots) -> Owned | SlotError:
        if self.dead:
            return NO_DEVICE
        rows, kept = slots.enter([i]), list[bytes]()

        def take(value: Any) -> None:
            piece = owned(value, slots.raw.request_processor[0], self.tensors, self.max_response_bytes)
            if isinstance(piece, SlotError):
                raise piece
            if self.on_piece is None or not self.on_piece(piece):
                kept.append(piece.body)

        try:
            with self.pieces.taken(slots.raw.request_ids[0], take):
                result = one_each(self.theirs(rows, slots.raw), 1)[0]
                self.pieces.raise_fault()
            answer = owned(result, slots.raw.request_processor[0], self.tensors, self.max_response_bytes)
            slots.keep()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a stranger's sys.exit() is no reason to end the worker
            slots.drop()
            return self._verdict(error, i, slots)
        return self._whole(kept, answer) if kept and isinstance(answer, Owned) else answer

    def _verdict(self, error: BaseException, i: int, slots: BatchSlots) -> SlotError:
        """What the request gets on which theirs failed."""
        if not isinstance(error, Gone):
            logger.warning("request %s failed: %s", slots.ids.get(i), type(error).__name__, exc_info=error)
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

    def _whole(self, kept: list[bytes], answer: Owned) -> Owned | SlotError:
        """All pieces in one, as a client of TorchServe has them that waits for the end."""
        body = b"".join([*kept, answer.body])
        if self.max_response_bytes is not None and len(body) > self.max_response_bytes:
            return ModelFault(f"the answer has {len(body)} bytes, {self.max_response_bytes} may leave the server")
        return answer._replace(body=body, tensor=False)
