"""Answer a batch with a stranger's handler as TorchServe does: theirs is called once, and what fails fails as a whole."""

from __future__ import annotations

import asyncio
import inspect
import logging

from slotwise.worker.guard.batches import Guard
from slotwise.worker.guard.blame import predicted
from slotwise.worker.guard.device import let_go
from slotwise.worker.guard.owned import Owned, one_each, owned
from slotwise.worker.guard.slots import BatchSlots
from slotwise.worker.isolation import is_out_of_memory
from slotwise.worker.slot_errors import OutOfMemory, SlotError, Unavailable

logger = logging.getLogger(__name__)

FAILED, OUT_OF_MEMORY = "Prediction failed", "Out of resources"  # TorchServe's words


class Bare(Guard):
    """For handlers that cannot be asked twice: they keep something between requests, or are coroutines."""

    def _outputs(self, slots: BatchSlots) -> list[Owned | SlotError]:
        """What theirs gave for each slot; where it raised, or did not give one answer each, the same error for all of them."""
        outputs: list[Owned | SlotError] = [row if isinstance(row, SlotError) else Unavailable(FAILED) for row in slots.rows]
        asked = [i for i, row in enumerate(slots.rows) if not isinstance(row, SlotError)]
        if not asked:
            return outputs
        rows = slots.enter(asked)
        try:
            given = self.theirs(rows, slots.raw)
            listed = asyncio.run(_awaited(given)) if inspect.isawaitable(given) else given
            results = one_each(listed, len(asked), shared=True)
            for i, result, processor in zip(asked, results, slots.raw.request_processor, strict=True):
                outputs[i] = owned(result, processor, self.tensors, self.max_response_bytes)
            slots.keep()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a stranger's sys.exit() is no reason to end the worker
            logger.exception("a batch of %d failed: %s", len(asked), slots.all_names())
            slots.drop()
            failed = _failed(error)
            let_go(error)
            for i in asked:
                outputs[i] = failed
        return outputs


def _failed(error: BaseException) -> SlotError:
    """What all of the batch get: as on TorchServe, what theirs says by its exception for that, or that it failed."""
    return predicted(error) or (OutOfMemory(OUT_OF_MEMORY) if is_out_of_memory(error) else Unavailable(FAILED))


async def _awaited(given: object) -> object:
    return await given  # type: ignore[misc]
