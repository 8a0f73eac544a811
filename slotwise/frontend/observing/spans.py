"""Requests as spans of OpenTelemetry: made once a request has ended, from what is known of it by then.

A request is a span of its own trace, or of the one that its client's traceparent names. Below it are its waits for a worker,
and each time that a worker had it. A batch is one span, below the first of its requests that is exported, and linked to all of
them; every other one's time at the worker is linked to the batch. Below the batch: decode, each call of the model, encode.

What is exported is decided at the end: what was sampled, what failed with a 5xx, what was tried again, and what was slow.
No span has a body, a header but the request's id, a key but its name, or a path that is not known here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slotwise import __version__
from slotwise.backends.request_way import BatchReport, BatchWay, Mate, RequestWay, Try
from slotwise.errors import missing_package
from slotwise.frontend.observing.seen_request import SeenRequest, new_span_id, new_trace_id

try:
    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, TraceFlags, set_span_in_context
    from opentelemetry.trace.status import Status, StatusCode
except ModuleNotFoundError as error:
    raise missing_package("opentelemetry", "--traces") from error

GRPC_CODES = {200: 0, 401: 16, 403: 7, 404: 5, 429: 8, 499: 1, 502: 14, 503: 14, 504: 4, 507: 8}  # else 3, or 13 for a 5xx
SAMPLED = TraceFlags(TraceFlags.SAMPLED)


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


class _KnownIds(IdGenerator):
    """Ids that were given out before their spans are made."""

    span_id = trace_id = 0

    def generate_span_id(self) -> int:
        """The one that stands ready, once; else a new one."""
        known, self.span_id = self.span_id, 0
        return known or new_span_id()

    def generate_trace_id(self) -> int:
        """As generate_span_id."""
        known, self.trace_id = self.trace_id, 0
        return known or new_trace_id()


class Spans:
    """Makes the spans of requests that have ended, and gives them to a processor."""

    def __init__(self, processor: SpanProcessor, sampling: Sampling) -> None:
        self.sampling, self._ids = sampling, _KnownIds()
        about = Resource.create({"service.name": "slotwise", "service.version": __version__})
        provider = TracerProvider(resource=about, sampler=ALWAYS_ON, id_generator=self._ids)
        provider.add_span_processor(processor)
        self.provider, self._tracer = provider, provider.get_tracer("slotwise", __version__)

    def ended(self, seen: SeenRequest) -> None:
        """One has ended."""
        if self.sampling.keeps(seen):
            self._request(seen)

    def _request(self, seen: SeenRequest) -> None:
        ended = seen.came + seen.seconds
        self._ids.span_id, self._ids.trace_id = seen.span_id, seen.trace_id
        parent = _context(seen.trace_id, seen.parent) if seen.parent else Context()
        name = seen.path.strip("/") if seen.protocol == "gRPC" else f"{seen.method} {seen.path}"
        span = self._start(name, parent, seen.came, _about_request(seen), SpanKind.SERVER)
        if seen.status >= 500:
            span.set_status(Status(StatusCode.ERROR, seen.reason))
            span.set_attribute("error.type", str(seen.status))
        _add_events(span, seen)
        if not seen.records:
            self._way(seen, _context(seen.trace_id, seen.span_id), ended)
        for one in seen.records:
            self._ids.span_id = one.span_id
            about = {"slotwise.request_id": one.identity}
            record = self._start("record", _context(seen.trace_id, seen.span_id), one.placed or seen.came, about)
            _add_events(record, one)
            self._way(one, _context(one.trace_id, one.span_id), ended)
            record.end(_ns(max((_end(each, ended) for each in one.batches), default=ended)))
        span.end(_ns(ended))

    def _way(self, one: RequestWay, below: Context, ended: float) -> None:
        """The waits, and each time that a worker had it."""
        since = one.placed
        for each in one.batches:
            if since:
                self._start("wait for a worker", below, since).end(_ns(max(since, each.batch.sent)))
            since = _end(each, ended)
            about = {
                "slotwise.batch.slot": each.slot,
                "slotwise.batch.size": each.batch.size,
                "slotwise.worker": each.batch.worker,
            }
            links = [] if each.batch.span is None else [_to_batch(each.batch, each.batch.span)]
            span = self._start("worker", below, each.batch.sent, about, links=links)
            if each.batch.failure:
                span.set_status(Status(StatusCode.ERROR, each.batch.failure))
            if each.batch.span is None:
                self._batch(each.batch, one, set_span_in_context(span, Context()), since)
            span.end(_ns(since))

    def _batch(self, batch: BatchWay, first: RequestWay, below: Context, ended: float) -> None:
        """The batch's own span, linked to each of its requests, and what ran in it."""
        links = [Link(_of(mate), {"slotwise.request_id": mate.identity}) for mate in batch.mates]
        about: dict[str, Any] = {"slotwise.batch.number": batch.number, "slotwise.batch.size": batch.size}
        report = batch.report
        if report is not None:
            about |= _about_batch(report)
        span_id = self._ids.span_id = new_span_id()
        batch.span = (first.trace_id, span_id)
        began = report.began if report else batch.sent
        span = self._start("batch", below, began, about, links=links)
        if batch.failure:
            span.set_status(Status(StatusCode.ERROR, batch.failure))
        if report is not None:
            self._stages(report, set_span_in_context(span, Context()))
        span.end(_ns(began + report.total_ms / 1000 if report else ended))

    def _stages(self, report: BatchReport, below: Context) -> None:
        decoded = report.began + report.decode_ms / 1000
        self._start("decode", below, report.began).end(_ns(decoded))
        for call in report.calls:
            at = report.began + call.at_ms / 1000
            about = {"slotwise.rows": call.rows, "slotwise.padding": call.size - call.rows, "slotwise.slots": list(call.slots)}
            span = self._start("call of the model", below, at, about)
            if call.error:
                span.set_status(Status(StatusCode.ERROR, call.error))
                span.set_attribute("error.type", call.error)
            span.end(_ns(at + call.took_ms / 1000))
        if report.total_ms:
            began = decoded + report.inference_ms / 1000
            self._start("encode", below, began).end(_ns(max(began, report.began + report.total_ms / 1000)))

    def _start(
        self,
        name: str,
        below: Context,
        at: float,
        about: Mapping[str, Any] | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Iterable[Link] = (),
    ) -> Span:
        return self._tracer.start_span(name, below, kind, about, list(links), _ns(at))


def over_http(url: str, sampling: Sampling) -> Spans:
    """Spans for an OTLP collector at this address. Raises SlotwiseError where the extra otel is missing."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  the extra otel
    except ModuleNotFoundError as error:
        raise missing_package("opentelemetry", "--traces") from error
    return Spans(BatchSpanProcessor(OTLPSpanExporter(f"{url.rstrip('/')}/v1/traces")), sampling)


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


def _add_events(span: Span, one: RequestWay) -> None:
    for at, what in one.notes:
        span.add_event(what, timestamp=_ns(at))
    if one.pieces:
        span.add_event("first piece", timestamp=_ns(one.first_piece))
        span.add_event("last piece", {"slotwise.pieces": one.pieces}, timestamp=_ns(one.last_piece))


def _end(each: Try, ended: float) -> float:
    """When a worker had it no longer: its batch was over, or its worker died before it was tried again."""
    report = each.batch.report
    return report.began + report.total_ms / 1000 if report else each.batch.failed or ended


def _to_batch(batch: BatchWay, span: tuple[int, int]) -> Link:
    return Link(SpanContext(*span, is_remote=False, trace_flags=SAMPLED), {"slotwise.batch.number": batch.number})


def _of(mate: Mate) -> SpanContext:
    return SpanContext(mate.trace_id, mate.span_id, is_remote=True, trace_flags=SAMPLED if mate.sampled else TraceFlags())


def _context(trace_id: int, span_id: int) -> Context:
    parent = SpanContext(trace_id, span_id, is_remote=True, trace_flags=SAMPLED)
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _ns(unix_s: float) -> int:
    return int(unix_s * 1e9)
