"""The context that TorchServe gives its handlers, for one whose methods run in several threads."""

from __future__ import annotations

import decimal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from http import HTTPStatus
from pathlib import Path
from typing import Any

from slotwise.worker.environment.settings import Settings
from slotwise.worker.guard.stand_in import StandInContext, StandInSlot, new_id
from slotwise.worker.guard.stand_in_metrics import StandInMetrics
from slotwise.worker.reports.handler_metrics import HandlerMetrics
from slotwise.worker.slot_errors import SlotError


class _Now(threading.local):
    """What each thread's call is about. A class of our own: an author's threading.local is looked into."""


class OwnMetrics(StandInMetrics):
    """The context's metrics, which are the handler's own."""

    def __init__(self, own: HandlerMetrics) -> None:
        super().__init__()
        self.own = own

    def take(self, name: str, number: float, unit: str) -> None:
        """Have it exported beside the handler's own numbers."""
        self.own.record(name, number, unit)


class ThreadsContext(StandInContext):
    """Speaks in each thread of other requests: a `preprocess` that never ends may run beside all others."""

    AUTHORS_SET_IT = True  # contents.py looks into it

    def __init__(self, *given: Any) -> None:
        self._now = _Now()
        super().__init__(*given)

    @contextmanager
    def speaking_of(self, headers: Sequence[Mapping[str, str]]) -> Iterator[list[StandInSlot]]:
        """Within, this thread's slots are of requests with these headers, with ids that nobody else has; then it has none."""
        slots = [StandInSlot(one) for one in headers]
        self._now.slots, self._now.ids = slots, {k: new_id() for k in range(len(slots))}
        try:
            yield slots
        finally:
            self._now.slots, self._now.ids = [], {}

    @property
    def request_processor(self) -> list[StandInSlot]:
        """This thread's slots."""
        return getattr(self._now, "slots", [])

    @request_processor.setter
    def request_processor(self, slots: list[StandInSlot]) -> None:
        self._now.slots = slots

    @property
    def request_ids(self) -> dict[int, Any]:
        """Their ids."""
        return getattr(self._now, "ids", {})

    @request_ids.setter
    def request_ids(self, ids: dict[int, Any]) -> None:
        self._now.ids = ids


def own_variables() -> Context:
    """Context variables for one request: what it sets in them, as numpy's and decimal's options, is of no other one."""
    own = copy_context()
    own.run(decimal.setcontext, decimal.getcontext().copy())  # else it would change that of all
    return own


def what_it_set(slot: StandInSlot) -> SlotError | None:
    """The error that an author's code has set as a request's status; None where it has set none."""
    code = slot.get_response_status_code()
    if code is None or (isinstance(code, int) and 200 <= code < 300):
        return None
    refused = SlotError(HTTPStatus(code).phrase if code in set(HTTPStatus) else "the handler refused this request")
    refused.code = code
    return refused


def context_of(model_dir: Path, settings: Settings) -> ThreadsContext:
    """What `initialize` is given. A folder without a manifest is a handler under development."""
    named = {"model": {"modelName": str(settings.model.get("name", "model"))}}
    built = (model_dir / "MAR-INF" / "MANIFEST.json").is_file()
    context = ThreadsContext(model_dir, settings.batch_size, None if built else named)
    context.system_properties["gpu_id"] = 0 if settings.device == "cuda" else None  # of those that this worker may see
    return context
