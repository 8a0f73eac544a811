"""Serve a pipeline in a worker of TorchServe or MMS.

Both servers call `handle(data, context)`: once with `data=None` when the worker starts, then once for each batch. While it
starts, `handle` raises what is wrong, and the server reports that the model failed. For a batch it returns exactly one body a
request and raises nothing of a handler's: on MMS an exception would cost every client of the batch its answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slotwise.worker.handler import BatchHandler
from slotwise.worker.hosts import reading
from slotwise.worker.hosts.java import fast_codec, mms_frames, torchserve
from slotwise.worker.hosts.java.between_batches import before_every_read, end_after_this_answer
from slotwise.worker.hosts.java.context import PACKAGES, ServerContext
from slotwise.worker.hosts.local_worker import LocalWorker
from slotwise.worker.hosts.started_worker import StartedWorker


class EntryPoint:
    """One handler, called by either server."""

    def __init__(self, handler: BatchHandler) -> None:
        self.handler = handler

    def handle(self, data: Sequence[Mapping[str, Any]] | None, raw_context: Any) -> list[bytes]:
        """Answer one batch: exactly one body a request, in order. With `data=None` start the worker and return nothing."""
        context = ServerContext(raw_context)
        if data is None:
            try:
                self.load(context)
            except RuntimeError as error:  # TorchServe would log it as "Unknown exception" and nothing else
                raise ValueError(str(error)) from error
            except MemoryError as error:  # MMS would never say that the model failed, and try it again and again
                raise ValueError(f"out of memory: {error}") from error
            return []
        requests = []
        for i, row in enumerate(data):
            headers = context.headers(i)
            requests.append(reading.request(row, headers, context.request_id(i, headers)))
        batch = self.worker.measured(requests, context)
        for i, answer in enumerate(batch.answers):
            context.answer(i, answer)
        if self.worker.dead:
            end_after_this_answer(PACKAGES[context.server])
        return [answer.body for answer in batch.answers]

    def without_server(self, model_dir: Path, batch_size: int) -> LocalWorker:
        """Start the same handler for a host that has no context to hand over."""
        return LocalWorker(type(self.handler)(), model_dir, batch_size)

    def load(self, context: ServerContext) -> None:
        """Start the handler; where its profile wants an audit, have that run between two batches."""

        def when_verified() -> None:
            replace_server_code(context)
            reading.keep_repeated_parts(PACKAGES[context.server])

        self.worker = StartedWorker(self.handler, context, context.metric_between, context.gpu_id, when_verified)
        if (audit := self.worker.audit) and not before_every_read(PACKAGES[context.server], audit.run):
            self.worker.audit = None


def replace_server_code(context: ServerContext) -> None:
    """Once in a worker, before the engine is loaded: read and write messages faster, mend MMS's, quieten TorchServe."""
    fast_codec.install(context.server)
    if context.server == "mms":
        mms_frames.install()
    else:
        torchserve.quieten(context)
