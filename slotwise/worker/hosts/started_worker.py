"""Start a handler in an extracted archive and have it answer batches, as every host does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from slotwise.worker.answer import Answer
from slotwise.worker.batch import Batch
from slotwise.worker.environment import digests
from slotwise.worker.environment.settings import Settings, pin_gpu
from slotwise.worker.handler import BatchHandler
from slotwise.worker.pipeline import Pipeline
from slotwise.worker.reports import telemetry
from slotwise.worker.request import Request
from slotwise.worker.separability.audit import Audit, AuditedAnswer


class StartedWorker:
    """A handler that answers batches. Every batch is measured, and a share of the answers is kept to be audited.

    context: what is reported of the worker. count(name, value): export a number between two batches. gpu_id: the GPU that the
    server assigned to this worker, or None. when_verified(): called once the archive is known to be what was built, before the
    engine is loaded.
    """

    def __init__(
        self,
        handler: BatchHandler,
        context: telemetry.WorkerContext,
        count: Callable[[str, int], None],
        gpu_id: int | None = None,
        when_verified: Callable[[], None] = lambda: None,
    ) -> None:
        """Verify the archive, read its settings, load the engine and run it at every size that will be served."""
        digests.verify(context.model_dir)
        when_verified()
        if gpu_id is not None:
            pin_gpu(gpu_id)
        settings = Settings.load(context.model_dir, os.environ, gpu_id, context.batch_size)
        settings.limit_threads()
        self.handler = handler
        self.pipeline = Pipeline.start(handler, context.model_dir, settings)
        self.meter = telemetry.Meter()
        self.audit = Audit(settings.audit, self._again, count) if settings.audit else None
        headers = self.pipeline.hooks.headers()
        telemetry.write(context, self.pipeline, headers if isinstance(headers, dict) else {})

    @property
    def dead(self) -> bool:
        """Whether it answers no other batch."""
        return self.pipeline.dead

    def measured(self, requests: Sequence[Request], context: telemetry.WorkerContext) -> Batch:
        """Answer one batch. context: takes its numbers."""
        batch = self.pipeline.run(requests)
        self.meter.measure(context, batch, self.handler)
        if self.audit is not None:
            self.audit.keep(_auditable(batch))
        return batch

    def _again(self, request: Request) -> AuditedAnswer:
        """Answer a request again, in a batch of its own and without its deadline."""
        return _comparable(self.pipeline.answer([replace(request, deadline_s=None)])[0])


def _auditable(batch: Batch) -> Iterator[tuple[str, Callable[[], tuple[Request, AuditedAnswer]]]]:
    """The requests whose answer depends on nothing but themselves: a 413 or a 5xx may be for what the whole batch cost."""
    for request, answer in zip(batch.requests, batch.answers, strict=True):
        if answer.status < 500 and answer.status != 413:
            yield request.id, lambda request=request, answer=answer: (request, _comparable(answer))  # type: ignore[misc]


def _comparable(answer: Answer) -> AuditedAnswer:
    """What an audit compares of an answer."""
    return AuditedAnswer(answer.status, answer.content_type, answer.body)
