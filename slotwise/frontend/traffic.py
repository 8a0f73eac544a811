"""The requests to one model: how many at once, and whether they may be sent twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.frontend.admission.fair_shares import ConcurrencyLimit

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel

UNKNOWN_BATCH = 16  # of a model that the server's list does not hold


class ModelTraffic:
    """The traffic of one model. `in_flight` and `queued` are what the gateway's options say of them.

    repeatable: whether a second copy of a request does no harm.
    """

    def __init__(self, in_flight: int, queued: int, repeatable: bool) -> None:
        self._in_flight, self._queued = in_flight, queued
        self.limit = ConcurrencyLimit(*self._sizes(UNKNOWN_BATCH))
        self.repeatable = repeatable
        self.answered = False  # a request, since the backend was looked at

    def fit(self, model: LiveModel) -> None:
        """Resize the limit to the model's batches and workers."""
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
