"""A base class for who comes with TorchServe's four methods: initialize, preprocess, inference and postprocess.

There one call of each has the whole batch, so what one request makes it raise fails for all of them. Here `preprocess` gets one
request at a time and `postprocess` one row, each as a batch of one; only `inference` gets all rows, isolated as anybody's are.
What they leave on `self` is of their request (own_state.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any

from slotwise.worker.environment.settings import Settings
from slotwise.worker.familiar.own_state import OwnState, RowState, undone
from slotwise.worker.familiar.whole_batches import LooseRow, batch_of_rows, form, rows_of_batch
from slotwise.worker.guard.blame import predicted
from slotwise.worker.guard.stand_in import StandInContext, StandInSlot, new_id
from slotwise.worker.guard.stand_in_metrics import StandInMetrics
from slotwise.worker.handler import BatchHandler
from slotwise.worker.hosts.java.unreadable import decoded
from slotwise.worker.inputs.uploads import beside_a_body
from slotwise.worker.ownership import owned
from slotwise.worker.reports.handler_metrics import HandlerMetrics
from slotwise.worker.request import Request
from slotwise.worker.slot_errors import ModelFault, SlotError, Unavailable

logger = logging.getLogger(__name__)

AskedRow = tuple[LooseRow, dict[str, str], RowState]  # with the headers of its request, and what was left on `self` for it
AskedBatch = tuple[Any, list[dict[str, str]], list[RowState]]


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

    def __init__(self, *given: Any) -> None:
        self._now = threading.local()
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


class TorchServeHandler(BatchHandler):
    """A handler with the four methods of TorchServe's BaseHandler. Override those that you have.

    What these methods raise costs the request, or the row, that they were called for; a SlotError or TorchServe's
    PredictionException is its answer. A status that is set on the context is, too; in `inference` slot k is row k's.

    What `preprocess` sets on `self`, the same request's other methods find there; such requests run one at a time, unless it is
    the same for all. So do all where each `inference` sets something.

    model: what `initialize` has set; until then the model's description. context: what `initialize` was given.
    """

    def initialize(self, context: Any) -> None:
        """Load the model, once. By default `self.model` becomes the profile's engine with the weights of model.toml.

        context: has manifest, system_properties (model_dir, gpu_id, batch_size) and model_yaml_config.
        """
        self.model = super().load(Path(context.system_properties["model_dir"]), self.settings)

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        """Turn one request into a batch of one row: an array or tensor [1, ...], a dict or tuple of such, a list of one thing.

        data: one dict, with `body`, or with a form's fields; JSON and text are decoded, as TorchServe does it. It is called by
        one thread at a time; where one call does not end, its batch is answered, and the worker ends.
        """
        raise NotImplementedError

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the model on the rows of several requests, [b, ...] of what `preprocess` gave: exactly b rows, in order."""
        return self.model(data)

    def postprocess(self, data: Any) -> Any:
        """Turn a batch of one row of `inference` into a list of one answer: bytes, text, or what can be written as JSON."""
        return data.tolist()

    # Not to be overridden --------------------------------------------------------------------------------------------

    @cached_property
    def model(self) -> Any:
        """What `initialize` sets; until then the model's description, with the keys of its model.toml."""
        return self.settings.model

    def load(self, model_dir: Path, settings: Settings) -> Any:
        """Call `initialize`; the engine is `inference`."""
        self._one_at_a_time = threading.Lock()
        self.context = context_of(model_dir, settings)
        self.context.metrics = OwnMetrics(self.metrics)
        self.initialize(self.context)
        vars(self).setdefault("model", settings.model)  # what is only looked up later would look as if it was set then
        self._left, self._left_by_batches = OwnState(vars(self)), Counter[str]()
        self._said = set[tuple[str, tuple[str, ...]]]()
        return self.inference

    def example(self) -> None:
        """None: what `preprocess` would make of one is not known."""

    def read(self, request: Request) -> list[AskedRow]:
        """The one row of a request, with its headers."""
        if request.unclear and not request.fields:
            raise request.unclear
        row: dict[str, Any] = {name: values[-1] for name, values in request.fields.items()} or {
            **beside_a_body(request.query),
            "body": decoded(request.body, request.headers.get("content-type", ""), "torchserve"),
        }
        headers = dict(request.headers)
        with self._alone(), self._asking(headers), self._left.leaving() as left:
            rows: list[Any] = list(map(owned, rows_of_batch(self.preprocess([row]))))  # the next call may fill the same array
        if len(rows) != 1:
            raise ModelFault(f"preprocess made {len(rows)} rows of one request")
        return [(rows[0], headers, left)]

    def groups(self, items: Sequence[AskedRow]) -> list[list[int]]:
        """Rows of one type and shape run together, where the same was left on `self` for them."""
        alike: dict[object, list[int]] = {}
        for i, (row, _, left) in enumerate(items):
            alike.setdefault((form(row), left.alike()), []).append(i)
        if len(alike) > len({form(row) for row, _, _ in items}):
            self._say_apart("preprocess", *sorted(self._left.names))
        step = self.max_rows or self.settings.batch_size
        if by_batches := self._set_in_each_batch():
            self._say_apart("inference", *by_batches)
            step = 1
        return [group[start : start + step] for group in alike.values() for start in range(0, len(group), step)]

    def collate(self, items: list[AskedRow]) -> AskedBatch:
        """The batch that `inference` is called with, and each row's headers and what was left on `self` for it.

        Copies of one row, which only fill a batch, would not fit what was left for that row: it runs without them.
        """
        rows, headers, left = map(list, zip(*items, strict=True))
        if (left[0] or self._set_in_each_batch()) and all(one is left[0] for one in left):
            del rows[1:], headers[1:]
        return batch_of_rows(rows), headers, left

    def predict(self, inputs: AskedBatch) -> Sequence[LooseRow | SlotError]:
        """The rows of what `inference` gives; in the place of one whose status it has set, that error."""
        batch, headers, states = inputs
        mine, speaking = self._left, self.context.speaking_of(headers)
        self._refuse_beside_another()
        with mine.standing(states[0]), speaking as slots, undone([mine.of]), mine.leaving() as left:
            rows = rows_of_batch(self.inference(batch))
        self._left_by_batches.update({name: 2 if mine.is_each_times(name) else 1 for name in left.changed})
        if left.changed and any(one is not states[0] for one in states):
            raise ModelFault("what inference has set on self is of a batch, and its rows are answered one by one")
        states[0].update(left)
        if len(rows) != len(slots):  # whose these are nobody can tell
            return rows
        given = [what_it_set(slot) or row for slot, row in zip(slots, rows, strict=True)]
        return given * (len(states) // len(slots))

    def encode(self, output: LooseRow, item: AskedRow) -> tuple[Any, str]:
        """One row's answer, and its content type where the context was told one."""
        self._refuse_beside_another()
        with self._left.standing(item[2]), self._asking(item[1]) as slot:
            answers = self.postprocess(batch_of_rows([output]))
        if isinstance(answers, str | bytes | dict) or len(answers) != 1:
            raise ModelFault("postprocess did not make one answer of one row")
        answer = answers[0]
        value = answer.tolist() if hasattr(answer, "tolist") else answer
        return value, str(slot.get_response_headers().get("content-type", ""))

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        """The one answer, of the kind that it is."""
        if isinstance(results[0], SlotError):
            raise results[0]
        value, content_type = results[0]
        kind = "text/plain; charset=utf-8" if isinstance(value, str) else "application/octet-stream"
        return value, content_type or (kind if isinstance(value, str | bytes) else "application/json")

    def _say_apart(self, method: str, *names: str) -> None:
        """In the log, once for each."""
        if (method, names) not in self._said:
            self._said.add((method, names))
            why = "such rows run one at a time; hand it on with the row instead"
            logger.warning("%s sets %s on self, which is of a request: %s", method, ", ".join(names), why)

    def _set_in_each_batch(self) -> list[str]:
        """What `inference` sets for what it runs: more than once, or of a kind that nobody makes for all."""
        return sorted(name for name, times in self._left_by_batches.items() if times > 1)

    def _refuse_beside_another(self) -> None:
        """Raise Unavailable where a `preprocess` that took too long still runs, and may set at any time what this one reads."""
        if self._left.names and self._read_alone_since is not None:
            raise Unavailable("the handler still reads a request that takes too long")

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

    @contextmanager
    def _asking(self, headers: Mapping[str, str]) -> Iterator[StandInSlot]:
        """The request, or the row, that the context speaks of. A PredictionException or a status that is set is its answer."""
        with self.context.speaking_of([headers]) as (slot,):
            try:
                yield slot
            except Exception as error:
                if "PredictionException" in (kind.__name__ for kind in type(error).__mro__):
                    raise predicted(error) from error
                raise
        if refused := what_it_set(slot):
            raise refused


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
