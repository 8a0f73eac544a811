"""Which answers of a batch an audit may ask for again, and how it asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from slotwise.worker.answer import Answer
from slotwise.worker.batch import Batch
from slotwise.worker.pipeline import Pipeline
from slotwise.worker.request import Request
from slotwise.worker.separability.audit import AuditedAnswer


def audited(batch: Batch) -> Iterator[tuple[str, Callable[[], tuple[Request, AuditedAnswer]]]]:
    """The requests whose answer depends on nothing but themselves: a 413 or a 5xx may be for what the whole batch cost."""
    for request, answer in zip(batch.requests, batch.answers, strict=True):
        if answer.status < 500 and answer.status != 413:
            yield request.id, lambda request=request, answer=answer: (request, comparable(answer))  # type: ignore[misc]


def comparable(answer: Answer) -> AuditedAnswer:
    """An answer as an audit compares it."""
    return AuditedAnswer(answer.status, answer.content_type, answer.body)


def alone(pipeline: Pipeline) -> Callable[[Request], AuditedAnswer]:
    """Answer a request again, in a batch of its own and without its deadline."""
    return lambda request: comparable(pipeline.answer([replace(request, deadline_s=None)])[0])
