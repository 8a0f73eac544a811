"""Serve a pipeline from a server's worker: what TorchServe and MMS have in common.

Both call `handle(data, context)`: once with `data=None` when the worker starts, then once a batch. It returns exactly one body
a request and lets no exception out: on MMS an exception would cost every client of the batch its answer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from slotwise.worker.handler import BatchHandler
from slotwise.worker.hosts import mms, reading, report, torchserve
from slotwise.worker.hosts.between import end_after_this_answer
from slotwise.worker.hosts.context import PACKAGES, ServerContext
from slotwise.worker.hosts.starting import start

logger = logging.getLogger(__name__)

PREPARE = {"torchserve": torchserve.prepare, "mms": mms.prepare}


class Entry:
    """One handler as either server's entry point."""

    def __init__(self, handler: BatchHandler) -> None:
        self.handler = handler

    def handle(self, data: Sequence[Mapping[str, Any]] | None, raw_context: Any) -> list[bytes]:
        """Answer one batch: exactly one body a request, in order. With `data=None`: start up."""
        context = ServerContext(raw_context)
        if data is None:
            try:
                self.load(context)
            except RuntimeError as error:  # TorchServe would log it as "Unknown exception" and nothing else
                raise ValueError(str(error)) from error
            return []
        requests = [reading.request(i, row, context) for i, row in enumerate(data)]
        batch = self.pipeline.run(requests)
        try:
            self.meter.measure(context, batch, self.handler.metrics)
        except Exception:  # a number costs nobody an answer
            logger.exception("the batch could not be measured")
        for i, answer in enumerate(batch.answers):
            context.answer(i, answer)
        if self.pipeline.dead:
            end_after_this_answer(PACKAGES[context.server])
        return [answer.body for answer in batch.answers]

    def load(self, context: ServerContext) -> None:
        """Start the pipeline, and leave word of what it runs on."""

        def verified() -> None:
            PREPARE[context.server](context)
            reading.keep_repeated_parts(PACKAGES[context.server])

        self.pipeline = start(self.handler, context.model_dir, context.batch_size, context.gpu_id, verified)
        self.meter = report.Meter()
        headers = self.pipeline.hooks.headers()
        report.write(context, self.pipeline.settings, self.handler.engine, headers if isinstance(headers, dict) else {})
