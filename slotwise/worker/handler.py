"""The handler: n requests in, n answers out, whatever some of them are.

    n requests --decode--> m items --collate, pad--> [b, ...] --predict--> b outputs --encode--> results --respond--> n answers

Both servers call `handle(data, context)`: once with `data=None` when the worker starts, then once a batch. It returns
exactly one body a request and lets no exception out: on MMS an exception would cost every client of the batch its answer.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from slotwise.worker import digests
from slotwise.worker.answer import Answer, refusal, sayable, serialise
from slotwise.worker.batch import Batch, Request
from slotwise.worker.errors import (
    BadRequest,
    DeadlineExceeded,
    ModelFault,
    OutOfMemory,
    SlotError,
    Unavailable,
)
from slotwise.worker.hosts import exchange, mms_frames, reading, report
from slotwise.worker.hosts.context import Headers, ServerContext
from slotwise.worker.isolation import EngineDead, Isolation, Tally
from slotwise.worker.outputs import finite, on_host
from slotwise.worker.padding import Padding, pad_rows
from slotwise.worker.settings import Settings, pin_gpu

logger = logging.getLogger(__name__)

RETIRE_AFTER_S = 0.5  # long enough for the last answers to leave the worker


class BatchHandler:
    """Override `load`, `decode`, `predict`, `encode`; most handlers need one or two of them.

    max_rows: the most rows that run at once (None: the batch_size of the registration).
    """

    max_rows: ClassVar[int | None] = None

    settings: Settings
    engine: Any
    dead = False

    # What a handler's author may override ------------------------------------------------------------------------

    def load(self, model_dir: Path, settings: Settings) -> Any:
        """Once, when the worker starts: return the engine, a callable [b, ...] -> [b, ...]."""
        from slotwise.worker.engines import load_engine

        return load_engine(model_dir, settings)

    def example(self) -> Any | None:
        """One valid item: for the warm-up, and to tell a bad input from a dead engine. None: there is no such item."""
        shape = self.model.get("input", {}).get("shape")
        return np.zeros(shape, np.float32) if shape else None

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        """One request's items (or a SlotError in a record's place); raise a SlotError to refuse the whole request.

        Runs in a pool of threads: touch nothing but the arguments.
        """
        raise NotImplementedError

    def groups(self, items: Sequence[Any]) -> list[list[int]]:
        """Which rows run together: every index of `items` exactly once. Groups over max_rows are cut later."""
        step = self.padding.max_rows
        return [list(range(start, min(start + step, len(items)))) for start in range(0, len(items), step)]

    def collate(self, items: list[Any]) -> Any:
        """Items of one group to the engine's input: [b, ...]."""
        return np.stack(items)

    def predict(self, inputs: Any) -> Any:
        """[b, ...] to exactly b outputs, one a row, in order."""
        return self.engine(inputs)

    def encode(self, output: Any, item: Any) -> Any:
        """One row's output to one result that JSON can say."""
        return output.tolist() if isinstance(output, np.ndarray | np.generic) else output

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        """One request's results (a SlotError in a failed record's place) to its body and content type.

        The body may be bytes, str, or anything that JSON can say.
        """
        if len(results) == 1:
            if isinstance(results[0], SlotError):
                raise results[0]
            return results[0], "application/json"
        return [r.body() if isinstance(r, SlotError) else r for r in results], "application/json"

    def response_headers(self) -> dict[str, str]:
        """Headers that every answer of this model carries."""
        return {}

    # The servers' four stages -------------------------------------------------------------------------------------

    def initialize(self, context: ServerContext) -> None:
        """Verify the archive, load the engine and run it at every size that will be served."""
        digests.verify(context.model_dir)
        exchange.install(context.server)
        if context.server == "mms":
            mms_frames.install()
        else:
            report.quieten(context)
        if context.gpu_id is not None:
            pin_gpu(context.gpu_id)
        self.settings = Settings.load(context.model_dir, os.environ, context.gpu_id, context.batch_size)
        self.settings.limit_threads()
        self.engine = self.load(context.model_dir, self.settings)
        self.padding = Padding(self.settings.padding, self.max_rows or self.settings.batch_size)
        self.isolation = Isolation(self._attempt, self.padding, self._alive, self._release)
        threads = self.settings.decode_threads
        self.pool = ThreadPoolExecutor(threads, "decode") if threads > 1 else None
        if (item := self.example()) is not None:
            self.isolation.prepare(item, getattr(self.engine, "warm_up_runs", 1))
        self.meter = report.Meter()
        report.write(context, self.settings, self.engine, self.response_headers())

    def preprocess(self, data: Sequence[Any], context: ServerContext) -> Batch:
        """Decode every request for itself; what cannot be decoded becomes that slot's error."""
        started = time.perf_counter()
        batch = Batch(len(data))
        for i, row in enumerate(data):
            try:
                batch.requests[i] = reading.request(i, row, context)
            except SlotError as error:
                batch.reject(i, error)
        asked = [request for request in batch.requests if request is not None]
        decoded = self.pool.map(self._decode, asked) if self.pool and len(asked) > 1 else map(self._decode, asked)
        for request, items in zip(asked, decoded, strict=True):
            if isinstance(items, SlotError):
                batch.reject(request.index, items)
            else:
                batch.accept(request.index, items)
        batch.decode_ms = (time.perf_counter() - started) * 1000
        return batch

    def inference(self, batch: Batch, tally: Tally | None = None) -> Batch:
        """Run the rows group by group; `batch.outputs[row]` is the row's output or its SlotError."""
        started = time.perf_counter()
        stop_at = time.monotonic() + self.settings.response_timeout_s / 2
        batch.outputs = [ModelFault("the model gave this row no output")] * batch.m
        try:
            if self.dead:
                raise EngineDead
            for group in self.groups(batch.items) if batch.items else []:
                due = [row for row in group if not self._late(batch, row)]
                outputs = self.isolation.run([batch.items[row] for row in due], stop_at, tally)
                for row, output in zip(due, outputs, strict=True):
                    batch.outputs[row] = output
        except EngineDead:
            logger.error("the engine is dead: this worker ends, the server starts a new one", exc_info=True)
            batch.outputs = [Unavailable("the model's engine failed and is being restarted")] * batch.m
            self._retire()
        batch.inference_ms = (time.perf_counter() - started) * 1000
        return batch

    def postprocess(self, batch: Batch) -> list[Answer]:
        """Encode every row for itself, hand the results back to their owners, and serialise every slot for itself."""
        batch.scatter([self._encode(o, item) for o, item in zip(batch.outputs, batch.items, strict=True)])
        timing = {"x-decode-ms": f"{batch.decode_ms:.2f}", "x-inference-ms": f"{batch.inference_ms:.2f}"}
        headers = {**self.response_headers(), "x-batch-size": str(batch.n), **timing}
        return [self._answer(batch, i, {**headers, "x-batch-slot": str(i)}) for i in range(batch.n)]

    def handle(self, data: Sequence[Any] | None, raw_context: Any) -> list[bytes]:
        """Answer one batch: exactly one body a request, in order. With `data=None`: start up."""
        context = ServerContext(raw_context)
        if data is None:
            try:
                self.initialize(context)
            except RuntimeError as error:  # TorchServe would log it as "Unknown exception" and nothing else
                raise ValueError(str(error)) from error
            return []
        started, tally = time.perf_counter(), Tally()
        try:
            batch = self.inference(self.preprocess(data, context), tally)
            answers = self.postprocess(batch)
            self.meter.measure(context, batch, tally, answers, (time.perf_counter() - started) * 1000)
        except Exception:
            logger.exception("the handler itself failed on a batch of %d", len(data))
            answers = [refusal(ModelFault("the handler failed"), {})] * len(data)
        for i, answer in enumerate(answers):
            context.answer(i, answer.code, answer.phrase, answer.content_type, answer.headers)
        return [answer.body for answer in answers]

    @classmethod
    def entry_point(cls) -> Callable[[Sequence[Any] | None, Any], list[bytes]]:
        """The module-level `handle` of an archive: MMS hides the failed initialize of a class."""
        return cls().handle

    # One request, one row, one slot at a time: each failure stays where it happened ---------------------------------

    @property
    def model(self) -> Any:
        """The model's description, as in its model.toml."""
        return self.settings.model

    def _decode(self, request: Request) -> list[Any] | SlotError:
        try:
            if request.deadline_s is not None and time.time() > request.deadline_s:
                raise DeadlineExceeded("the deadline had passed when the request was read")
            items = self.decode(request.body, request.headers)
            if not isinstance(items, list):
                raise ModelFault("the handler's decode did not return a list")
            return items
        except SlotError as error:
            return error
        except MemoryError:
            return OutOfMemory("the body does not fit into memory once decoded")
        except Exception:
            logger.warning("request %s could not be decoded", request.id, exc_info=True)
            return BadRequest("the body could not be decoded")

    def _late(self, batch: Batch, row: int) -> bool:
        request = batch.requests[batch.owners[row]]
        late = request is not None and request.deadline_s is not None and time.time() > request.deadline_s
        if late:
            batch.outputs[row] = DeadlineExceeded("the deadline passed before the model ran")
        return late

    def _attempt(self, items: list[Any], size: int) -> list[Any]:
        """Run the model once on `items` padded to `size` rows: one output or SlotError an item; may raise anything."""
        m = len(items)
        outputs = on_host(self.predict(self.collate(pad_rows(items, size, items[-1]))))  # b = size
        count = len(outputs) if hasattr(outputs, "__len__") else None
        if count != size:
            logger.error("predict gave %s outputs for %d rows: nobody can tell whose they are", count, size)
            return [ModelFault("the model gave a wrong number of outputs")] * m
        if isinstance(outputs, np.ndarray) and finite(outputs[:m]):
            return list(outputs[:m])
        return [o if finite(o) else ModelFault("the model's output is not finite") for o in outputs[:m]]

    def _encode(self, output: Any, item: Any) -> Any:
        if isinstance(output, SlotError):
            return output
        try:
            return self.encode(output, item)
        except SlotError as error:
            return error
        except Exception:
            logger.warning("an output could not be encoded", exc_info=True)
            return ModelFault("the model's output could not be encoded")

    def _answer(self, batch: Batch, i: int, headers: dict[str, str]) -> Answer:
        request, error = batch.requests[i], batch.errors[i]
        if error is not None or request is None:
            return refusal(error or ModelFault("the request could not be read"), headers)
        try:
            try:
                return self._respond(request, batch.results[i], headers)
            except (ValueError, TypeError, RecursionError):  # a result that JSON cannot say fails in its own place
                return self._respond(request, [sayable(result) for result in batch.results[i]], headers)
        except SlotError as refused:
            return refusal(refused, headers)
        except Exception:
            logger.warning("the answer to request %s could not be encoded", request.id, exc_info=True)
            return refusal(ModelFault("the answer could not be encoded"), headers)

    def _respond(self, request: Request, results: list[Any], headers: dict[str, str]) -> Answer:
        body, content_type = self.respond(request, results)
        said = serialise(body)
        if len(said) > self.settings.max_response_bytes:  # the server would end the worker, and with it the whole batch
            raise ModelFault(f"the answer has {len(said)} bytes, {self.settings.max_response_bytes} may leave the server")
        return Answer(200, "OK", content_type, said, headers)

    # Start and end of a worker --------------------------------------------------------------------------------------

    def _alive(self) -> bool:
        try:
            item = self.example()
            if item is not None:
                self._attempt([item], self.padding.size(1, 1))
            return True
        except Exception:
            logger.exception("the warm-up input fails")
            return False

    def _release(self) -> None:
        free = getattr(self.engine, "release", None)
        if callable(free):
            free()

    def _retire(self) -> None:
        """End this worker once its last answers have left; the server starts a new one."""
        if not self.dead:
            self.dead = True
            threading.Timer(RETIRE_AFTER_S, os._exit, [1]).start()
