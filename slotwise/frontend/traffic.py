"""The requests to one model: how many at once, when an answer is late, and who goes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.backends.remote.hedging import Hedging
from slotwise.backends.remote.sending_permits import Passage
from slotwise.backends.remote.worker_end import EndingWorkers
from slotwise.frontend.admission.fair_shares import ConcurrencyLimit

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel

UNKNOWN_BATCH = 16  # of a model that the server's list does not hold


class ModelTraffic:
    """The traffic of one model. `in_flight` and `queued` are what the gateway's options say of them."""

    def __init__(self, in_flight: int, queued: int, hedge: bool) -> None:
        self._in_flight, self._queued = in_flight, queued
        self.limit = ConcurrencyLimit(*self._sizes(UNKNOWN_BATCH))
        self.hedging = Hedging(hedge)
        self.passage = Passage()
        self.ending = EndingWorkers()
        self.answered = False  # since was_answered was asked

    def was_answered(self) -> bool:
        """Whether the model has answered a request since this was last asked."""
        answered, self.answered = self.answered, False
        return answered

    def fit(self, model: LiveModel) -> None:
        """Resize the limit to the model's batches and workers, and know these."""
        self.ending.follow(worker.pid for worker in model.workers)
        self.limit.resize(*self._sizes(max(len(model.workers), 1) * model.batch_size))

    def _sizes(self, batch: int) -> tuple[int, int]:
        """Enough at the server for the next batch to be ready when one is done; one more waits here."""
        return self._in_flight or max(2 * batch, 8), self._queued if self._queued >= 0 else max(batch, 4)

    def shown(self) -> dict[str, int]:
        """What the page shows of it."""
        limit = self.limit
        return {
            "in_flight": limit.running,
            "queued": limit.queued,
            "in_flight_max": limit.in_flight_max,
            "queue_max": limit.queue_max,
        }
