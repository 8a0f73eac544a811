"""A base class for who comes with TorchServe's four methods: initialize, preprocess, inference and postprocess.

There one call of each has the whole batch, so what one request makes it raise fails for all of them. Here `preprocess` gets one
request at a time and `postprocess` one row, each as a batch of one; only `inference` gets all rows, isolated as anybody's are.
Where one method leaves something for a later one, each request goes through all three before the next (handed_on.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from functools import cached_property
from pathlib import Path
from typing import Any

from slotwise.worker.decoding.decoders import Decoders
from slotwise.worker.environment.settings import Settings
from slotwise.worker.familiar.handed_on import effects_of, handed_on
from slotwise.worker.familiar.looking import Looking
from slotwise.worker.familiar.own_state import as_before, undone
from slotwise.worker.familiar.sources import is_authors
from slotwise.worker.familiar.threads_context import OwnMetrics, context_of, own_variables, what_it_set
from slotwise.worker.familiar.uses import METHODS
from slotwise.worker.familiar.whole_batches import LooseRow, batch_of_rows, form, rows_of_batch
from slotwise.worker.guard.blame import predicted
from slotwise.worker.guard.stand_in import StandInSlot
from slotwise.worker.handler import BatchHandler
from slotwise.worker.hooks import undecoded, unencoded
from slotwise.worker.hosts.java.unreadable import decoded
from slotwise.worker.inputs.uploads import beside_a_body
from slotwise.worker.outputs import WrongCount
from slotwise.worker.ownership import owned
from slotwise.worker.request import Request
from slotwise.worker.slot_errors import ModelFault, SlotError, Unavailable

logger = logging.getLogger(__name__)

ANSWER = "answer"  # in the place of a row's kind: it is the whole request's


class AskedRequest(dict[str, Any]):
    """A request beside its row, to be read anew. Empty for whoever looks for numbers in a row."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request = request

    def __deepcopy__(self, memo: object) -> AskedRequest:
        return self


AskedRow = tuple[LooseRow | None, dict[str, str], AskedRequest]  # a row; None where it is only read when its turn has come


class LeavesSomething(Exception):
    """A method has changed attributes of the handler that its source does not show. names: theirs."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names


class TorchServeHandler(BatchHandler):
    """A handler with the four methods of TorchServe's BaseHandler. Override those that you have.

    What these methods raise costs the request, or the row, that they were called for; a SlotError or TorchServe's
    PredictionException is its answer. A status that is set on the context is, too; in `inference` slot k is row k's.

    Where one of them leaves something on `self`, a class or a module that a later one reads, requests run one at a time.

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
        """Call `initialize`; the engine is `inference`. Raises ValueError where `handle` is overridden, which nobody calls."""
        if any("handle" in vars(kind) for kind in type(self).__mro__ if is_authors(kind)):
            raise ValueError("`handle` is overridden, and is never called here: `slotwise guard` serves such a handler")
        self._one_at_a_time, self._aside = threading.Lock(), Decoders(1)
        self.context = context_of(model_dir, settings)
        self.context.metrics = OwnMetrics(self.metrics)
        self.initialize(self.context)
        vars(self).setdefault("model", settings.model)  # what is only looked up later would look as if it was set then
        self._effects = effects_of(self, TorchServeHandler)
        self._looking = Looking(self, [kind for kind in type(self).__mro__ if kind not in TorchServeHandler.__mro__])
        self._apart = set[str]()
        self._run_apart(handed_on(self._effects))
        return self.inference

    def example(self) -> None:
        """None: what `preprocess` would make of one is not known."""

    def read(self, request: Request) -> list[AskedRow]:
        """The one row of a request, with its headers."""
        if request.unclear and not request.fields:
            raise request.unclear
        headers = dict(request.headers)
        row = None
        if not self._apart:
            try:
                row = self._preprocessed(request)
            except LeavesSomething as left:
                self._run_apart(left.names)
        return [(row, headers, AskedRequest(request))]

    def _preprocessed(self, request: Request) -> LooseRow:
        """What `preprocess` makes of a request."""
        row: dict[str, Any] = {name: values[-1] for name, values in request.fields.items()} or {
            **beside_a_body(request.query),
            "body": decoded(request.body, request.headers.get("content-type", ""), "torchserve"),
        }
        with self._alone(), self._running("preprocess"), self._asking(request.headers):
            self._read_alone_since = time.monotonic()  # what was looked at before took none of the author's time
            rows = rows_of_batch(self.preprocess([row]))
            own: list[Any] = list(map(owned, rows))  # the next call may fill the same array
        if len(own) != 1:
            raise ModelFault(f"preprocess made {len(own)} rows of one request")
        row_of_it: LooseRow = own[0]
        return row_of_it

    def groups(self, items: Sequence[AskedRow]) -> list[list[int]]:
        """Rows of one type and shape run together; each by itself where requests run one at a time."""
        if self._apart:
            return [[i] for i in range(len(items))]
        alike: dict[object, list[int]] = {}
        for i, (row, _, _) in enumerate(items):
            alike.setdefault(form(row) if row else None, []).append(i)
        step = self.max_rows or self.settings.batch_size
        return [group[start : start + step] for group in alike.values() for start in range(0, len(group), step)]

    def _shown_to_model(self, item: AskedRow) -> LooseRow | None:
        """The row: how long a header is no network sees."""
        return item[0]

    def collate(self, items: list[AskedRow]) -> list[AskedRow]:
        """The rows, for `predict` to put together."""
        return items

    def predict(self, items: list[AskedRow]) -> Sequence[LooseRow | SlotError]:
        """The rows of what `inference` gives; in the place of one whose status it has set, that error."""
        if self._apart:
            if any(asked is not items[0][2] for _, _, asked in items):
                raise ModelFault("what one method leaves for another is of one request: they are answered one by one")
            return [self._whole(items[0][2].request)] * len(items)  # the others fill a batch
        rows, headers = [row for row, _, _ in items if row], [one for _, one, _ in items]
        try:
            return self._inferred(rows, headers)
        except LeavesSomething as left:
            self._run_apart(left.names)
            return self.predict(items)

    def _inferred(self, rows: list[LooseRow], headers: Sequence[Mapping[str, str]]) -> list[LooseRow | SlotError]:
        """What `inference` makes of rows."""
        with self._running("inference"), self.context.speaking_of(headers) as slots:
            given = rows_of_batch(self.inference(batch_of_rows(rows)))
        if len(given) != len(slots):  # whose these are nobody can tell
            return list(given)
        return [what_it_set(slot) or row for slot, row in zip(slots, given, strict=True)]

    def encode(self, output: LooseRow, item: AskedRow) -> tuple[Any, str]:
        """One row's answer, and its content type where the context was told one."""
        return output[1] if output[0] == ANSWER else self._postprocessed(output, item[1])

    def _postprocessed(self, output: LooseRow, headers: Mapping[str, str]) -> tuple[Any, str]:
        """What `postprocess` makes of a row."""
        with self._running("postprocess"), self._asking(headers) as slot:
            answers = self.postprocess(batch_of_rows([output]))
        if isinstance(answers, str | bytes | dict) or len(answers) != 1:
            raise ModelFault("postprocess did not make one answer of one row")
        answer = answers[0]
        value = answer.tolist() if hasattr(answer, "tolist") else answer
        return value, str(slot.get_response_headers().get("content-type", ""))

    def _whole(self, request: Request) -> LooseRow | SlotError:
        """A request's answer, from all three methods. What `inference` raises is raised, the others' errors are its."""
        at, own = METHODS[0], own_variables()
        changed = [place for effects in self._effects.values() for place in effects.places.values()]
        try:
            with as_before(changed), undone([vars(self)]), self._looking.kept(self._apart):
                row = self._preprocessed_aside(request, own)
                at = METHODS[1]
                outputs = own.run(self._inferred, [row], [request.headers])
                if len(outputs) != 1:
                    raise WrongCount(len(outputs), 1)
                at = METHODS[2]
                if isinstance(outputs[0], SlotError):
                    raise outputs[0]
                return ANSWER, owned(own.run(self._postprocessed, outputs[0], request.headers))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if at == METHODS[1]:
                raise
            return (undecoded if at == METHODS[0] else unencoded)(error, request.id)

    def _preprocessed_aside(self, request: Request, own: Context) -> LooseRow:
        """What `preprocess` makes of a request in a context, in a thread that is left behind where that does not end."""

        def made(request: Request) -> LooseRow | BaseException:
            try:
                return own.run(self._preprocessed, request)
            except BaseException as error:
                return error

        share_s = self.settings.response_timeout_s / 4
        until = min(time.monotonic() + share_s, self.predict_until)
        outcome = self._aside.run(made, [request], share_s, until)[0] if self._read_alone_since is None else None
        if outcome is None:
            raise Unavailable("the handler still reads a request that takes too long")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    @contextmanager
    def _running(self, method: str) -> Iterator[None]:
        """Within, this method runs. Raises LeavesSomething where it has changed what its source does not show."""
        if self._apart:
            yield
            return
        in_source, places, before = self._effects[method].changed, self._effects[method].places.values(), set(vars(self))
        with self._looking.at(method) as (looked, last), as_before(places, last), undone([vars(self)], last) as changed:
            yield
            new = vars(self).keys() - before
            cached = {name for name in new if isinstance(getattr(type(self), name, None), cached_property)}
            if method != METHODS[-1] and (left := (changed() | looked()) - in_source - cached):
                raise LeavesSomething(left)

    def _run_apart(self, names: set[str]) -> None:
        """From now on each request goes through all methods before the next one does: of these names one leaves something."""
        if names and not self._apart:
            why = "so requests run one at a time; hand it on with the row instead"
            logger.warning("what preprocess or inference leaves in %s is of a request, %s", ", ".join(sorted(names)), why)
            vars(self)["max_rows"] = 1
        self._apart = self._apart | names

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        """The one answer, of the kind that it is."""
        if isinstance(results[0], SlotError):
            raise results[0]
        value, content_type = results[0]
        kind = "text/plain; charset=utf-8" if isinstance(value, str) else "application/octet-stream"
        return value, content_type or (kind if isinstance(value, str | bytes) else "application/json")

    @contextmanager
    def _asking(self, headers: Mapping[str, str]) -> Iterator[StandInSlot]:
        """The request, or the row, that the context speaks of. A PredictionException or a status that is set is its answer."""
        with self.context.speaking_of([headers]) as (slot,):
            try:
                yield slot
            except Exception as error:
                if meant := predicted(error):
                    raise meant from error
                raise
        if refused := what_it_set(slot):
            raise refused
