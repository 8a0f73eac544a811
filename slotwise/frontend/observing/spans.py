"""Requests as spans of OpenTelemetry: made once a request has ended, from what is known of it by then.

A request is a span of its own trace, or of the one that its client's traceparent names. Below it are its waits for a worker,
and each time that a worker had it. A batch is one span, below the first of its requests that is exported, and names all of
them; every other one's time at the worker is linked to the batch. It is linked to its requests: to those that were sampled, and
to all of them where it failed, was halved or is exported for another reason. Below it: decode, each call of the model, encode.

What is exported is decided at the end: what was sampled, what failed with a 5xx, what was tried again, and what was slow.
No span has a body, a header but the request's id, a key but its name, or a path that is not known here.
"""

from __future__ import annotations

import atexit
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from slotwise import __version__
from slotwise.backends.request_way import BatchReport, BatchWay, Mate, RequestWay, new_span_id
from slotwise.errors import missing_package
from slotwise.frontend.observing.seen_request import SeenRequest

try:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode
except ModuleNotFoundError as error:
    raise missing_package("opentelemetry", "--traces") from error

GRPC_CODES = {200: 0, 401: 16, 403: 7, 404: 5, 429: 8, 499: 1, 502: 14, 503: 14, 504: 4, 507: 8}  # else 3, or 13 for a 5xx
SAMPLED, _UNSET = TraceFlags(TraceFlags.SAMPLED), Status(StatusCode.UNSET)


@dataclass(frozen=True)
class Sampling:
    """What is exported. share: of requests without a parent, whatever becomes of them. slow_s: who took longer, too."""

    share: float
    slow_s: float

    def at_head(self, parent: bool | None) -> bool:
        """Whether a request is exported in any case. parent: what its client's traceparent says; None: it has none."""
        return random.random() < self.share if parent is None else parent

    def keeps(self, seen: SeenRequest) -> bool:
        """Whether one that has ended is exported."""
        if seen.sampled or seen.status >= 500 or seen.notes or seen.seconds > self.slow_s:
            return True
        return bool(seen.records) and any(one.notes for one in seen.records)


class _HashedOnce(Resource):
    """A resource whose hash is kept: the exporter asks for it with each span, and the SDK writes it as JSON each time."""

    def __hash__(self) -> int:
        self.__dict__["_hash"] = known = self.__dict__.get("_hash") or super().__hash__()
        return known


class _OpenSpan:
    """A span that has not ended; the SDK's own costs five times as much, for nothing that is of use here."""

    __slots__ = ("about", "began", "context", "events", "kind", "links", "name", "parent", "status")

    def __init__(self, name: str, context: SpanContext, parent: SpanContext | None, began: float) -> None:
        self.name, self.context, self.parent, self.began = name, context, parent, _ns(began)
        self.kind, self.status = SpanKind.INTERNAL, _UNSET
        self.about: dict[str, Any] = {}
        self.links: tuple[Link, ...] = ()
        self.events: list[Event] = []

    def fail(self, why: str, kind: str = "") -> None:
        """It has come to nothing. kind: of the error."""
        self.status = Status(StatusCode.ERROR, why)
        if kind:
            self.about["error.type"] = kind

    def add_events(self, one: RequestWay) -> None:
        """What happened to a request."""
        self.events += [Event(what, timestamp=_ns(at)) for at, what in one.notes]
        if one.pieces:
            self.events.append(Event("first piece", timestamp=_ns(one.first_piece)))
            self.events.append(Event("last piece", {"slotwise.pieces": one.pieces}, _ns(one.last_piece)))


class Spans:
    """Makes the spans of requests that have ended, and gives them to a processor."""

    def __init__(self, processor: SpanProcessor, sampling: Sampling) -> None:
        self.sampling, self.processor, self.keeps = sampling, processor, sampling.keeps
        made = Resource.create({"service.name": "slotwise", "service.version": __version__})
        self._resource = _HashedOnce(made.attributes, made.schema_url)
        self._scope = InstrumentationScope("slotwise", __version__)

    def ended(self, seen: SeenRequest) -> None:
        """One has ended, and is kept."""
        ended = seen.came + seen.seconds
        name = seen.path.strip("/") if seen.protocol == "gRPC" else f"{seen.method} {seen.path}"
        parent = _context(seen.ids[0], seen.parent, is_remote=True) if seen.parent else None
        span = _OpenSpan(name, _context(*seen.ids), parent, seen.came)
        span.kind, span.about = SpanKind.SERVER, _about_request(seen)
        if seen.status >= 500:
            span.fail(seen.reason, str(seen.status))
        span.add_events(seen)
        if not seen.records:
            self._way(seen, span.context, ended)
        for one in seen.records:
            record = _OpenSpan("record", _context(*one.ids), span.context, one.placed or seen.came)
            record.about = {"slotwise.request_id": one.identity}
            record.add_events(one)
            self._way(one, record.context, ended)
            self._end(record, max((_end(batch, ended) for batch, _ in one.batches), default=ended))
        self._end(span, ended)

    def _way(self, one: RequestWay, below: SpanContext, ended: float) -> None:
        """The waits, and each time that a worker had it."""
        since = one.placed
        for batch, slot in one.batches:
            if since:
                self._end(_below(below, "wait for a worker", since), max(since, batch.sent))
            since = _end(batch, ended)
            span = _below(below, "worker", batch.sent)
            span.about = {"slotwise.batch.slot": slot, "slotwise.batch.size": batch.size, "slotwise.worker": batch.worker}
            if batch.failure:
                span.fail(batch.failure)
            if batch.span is None:
                self._batch(batch, one, span.context, since)
            else:
                span.links = (_to_batch(batch, batch.span),)
            self._end(span, since)

    def _batch(self, batch: BatchWay, first: RequestWay, below: SpanContext, ended: float) -> None:
        """The batch's own span, linked to each of its requests that may have a span, and what ran in it."""
        report = batch.report
        began = report.began if report else batch.sent
        span = _below(below, "batch", began)
        batch.span = (first.ids[0], span.context.span_id)
        everybody = not first.sampled or bool(batch.failure) or (report is not None and report.cuts > 0)
        linked = [mate for mate in batch.mates if mate.sampled or (everybody and mate.span_id)]
        span.links = tuple([Link(_of(mate)) for mate in linked])
        span.about = {"slotwise.batch.number": batch.number, "slotwise.batch.size": batch.size}
        span.about["slotwise.batch.requests"] = " ".join([mate.identity for mate in batch.mates])
        if batch.failure:
            span.fail(batch.failure)
        if report is not None:
            span.about |= _about_batch(report)
            self._stages(report, span.context)
        self._end(span, began + report.total_ms / 1000 if report else ended)

    def _stages(self, report: BatchReport, below: SpanContext) -> None:
        decoded = report.began + report.decode_ms / 1000
        self._end(_below(below, "decode", report.began), decoded)
        for call in report.calls:
            at = report.began + call.at_ms / 1000
            span = _below(below, "call of the model", at)
            span.about = {"slotwise.rows": call.rows, "slotwise.padding": call.size - call.rows}
            span.about["slotwise.slots"] = _ranges(call.slots)  # a list would take as long to encode as the rest
            if call.error:
                span.fail(call.error, call.error)
            self._end(span, at + call.took_ms / 1000)
        if report.total_ms:
            began = decoded + report.inference_ms / 1000
            self._end(_below(below, "encode", began), max(began, report.began + report.total_ms / 1000))

    def _end(self, span: _OpenSpan, at: float) -> None:
        ended = ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=self._resource,
            attributes=span.about,
            events=span.events,
            links=span.links,
            kind=span.kind,
            status=span.status,
            start_time=span.began,
            end_time=_ns(at),
            instrumentation_scope=self._scope,
        )
        self.processor.on_end(ended)


def over_http(url: str, sampling: Sampling) -> Spans:
    """Spans for an OTLP collector at this address. Raises SlotwiseError where the extra otel is missing."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  the extra otel
    except ModuleNotFoundError as error:
        raise missing_package("opentelemetry", "--traces") from error
    processor = BatchSpanProcessor(OTLPSpanExporter(f"{url.rstrip('/')}/v1/traces"))
    atexit.register(processor.shutdown)
    return Spans(processor, sampling)


def _about_request(seen: SeenRequest) -> dict[str, Any]:
    about: dict[str, Any] = {
        "slotwise.request_id": seen.identity,
        "slotwise.model": seen.model,
        "slotwise.model_version": seen.version,
        "slotwise.key": seen.key,
        "client.address": seen.address,
        "slotwise.reason": seen.reason,
        "slotwise.tries": sum(len(way.batches) for way in seen.ways) or None,
        "slotwise.sent": seen.sent,
        "slotwise.convicted": any("convicted" in what for way in (seen, *seen.ways) for _, what in way.notes) or None,
        "slotwise.pieces": seen.pieces or None,
    }
    if seen.protocol == "gRPC":
        service, _, method = seen.path.strip("/").rpartition("/")
        code = GRPC_CODES.get(seen.status, 13 if seen.status >= 500 else 3)
        about |= {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method, "rpc.grpc.status_code": code}
    else:
        about |= {
            "http.request.method": seen.method,
            "url.path": seen.path,
            "url.scheme": "http",
            "http.response.status_code": seen.status,
            "network.protocol.version": seen.protocol.removeprefix("HTTP/"),
            "http.request.body.size": seen.bytes_in,
            "http.response.body.size": seen.bytes_out,
        }
    return {name: value for name, value in about.items() if value not in ("", None)}


def _about_batch(report: BatchReport) -> dict[str, Any]:
    about = {
        "slotwise.rows": report.rows,
        "slotwise.padding_share": round(report.padding / report.rows, 4) if report.rows else 0.0,
        "slotwise.cuts": report.cuts,
        "slotwise.engine": report.engine,
        "slotwise.precision": report.precision,
    }
    return {name: value for name, value in about.items() if value != ""}


def _end(batch: BatchWay, ended: float) -> float:
    """When a worker had it no longer: its batch was over, or its worker died before it was tried again."""
    report = batch.report
    return report.began + report.total_ms / 1000 if report else batch.failed or ended


def _to_batch(batch: BatchWay, span: tuple[int, int]) -> Link:
    return Link(SpanContext(*span, is_remote=False, trace_flags=SAMPLED), {"slotwise.batch.number": batch.number})


def _of(mate: Mate) -> SpanContext:
    return SpanContext(mate.trace_id, mate.span_id, is_remote=True, trace_flags=SAMPLED if mate.sampled else TraceFlags())


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, SAMPLED)


def _below(parent: SpanContext, name: str, began: float) -> _OpenSpan:
    return _OpenSpan(name, SpanContext(parent.trace_id, new_span_id(), is_remote=False, trace_flags=SAMPLED), parent, began)


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers as people write them: 0-3, 7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join([str(first) if first == last else f"{first}-{last}" for first, last in parts])


def _ns(unix_s: float) -> int:
    return int(unix_s * 1e9)
