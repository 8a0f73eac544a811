"""Serve a pipeline in a worker of TorchServe or MMS.

Both servers call `handle(data, context)`: once with `data=None` when the worker starts, then once for each batch. While it
starts, `handle` raises what is wrong, and the server reports that the model failed. For a batch it returns exactly one body a
request and raises nothing of a handler's: on MMS an exception would cost every client of the batch its answer.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from slotwise.worker.handler import BatchHandler
from slotwise.worker.hosts import fast_codec, mms_frames, reading, telemetry, torchserve
from slotwise.worker.hosts.context import PACKAGES, ServerContext
from slotwise.worker.hosts.starting import start

logger = logging.getLogger(__name__)


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
            return []
        requests = [reading.request(i, row, context) for i, row in enumerate(data)]
        batch = self.pipeline.run(requests)
        try:
            self.meter.measure(context, batch, self.handler.metrics)
        except Exception:  # the answers are there, and they count more than the numbers
            logger.exception("the batch could not be measured")
        for i, answer in enumerate(batch.answers):
            context.answer(i, answer)
        if self.pipeline.dead:
            end_after_this_answer(PACKAGES[context.server])
        return [answer.body for answer in batch.answers]

    def load(self, context: ServerContext) -> None:
        """Start the pipeline, and report what it runs on."""

        def when_verified() -> None:
            replace_server_code(context)
            reading.keep_repeated_parts(PACKAGES[context.server])

        self.pipeline = start(self.handler, context.model_dir, context.batch_size, context.gpu_id, when_verified)
        self.meter = telemetry.Meter()
        headers = self.pipeline.hooks.headers()
        telemetry.write(context, self.pipeline.settings, self.handler.engine, headers if isinstance(headers, dict) else {})


def replace_server_code(context: ServerContext) -> None:
    """Once in a worker, before the engine is loaded: read and write messages faster, mend MMS's, quieten TorchServe."""
    fast_codec.install(context.server)
    if context.server == "mms":
        mms_frames.install()
    else:
        torchserve.quieten(context)


def end_after_this_answer(package: str) -> None:
    """End the worker instead of reading the next message: the server starts a new one.

    A worker reads its next message only when it has written the last answer. So the batch in hand is answered, however long
    that takes, and no other batch is accepted.
    """
    protocol: Any = sys.modules.get(f"{package}.protocol.otf_message_handler")
    if not hasattr(protocol, "_retrieve_buffer"):
        logger.error("this worker cannot end itself: %s has no such protocol", package)
        return

    def end(conn: Any, length: int) -> Any:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    protocol._retrieve_buffer = end
