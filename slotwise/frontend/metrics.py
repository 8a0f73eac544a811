"""Count what Prometheus reads at /metrics. Labels hold only names of models that the server really has, else "other"."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from slotwise.backends.metric_labels import keep_labels

if TYPE_CHECKING:
    from slotwise.backends.request_way import RequestWay
    from slotwise.frontend.traffic import ModelTraffic

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class _AnswerCounts(NamedTuple):
    """What counts the answers of one model with one status."""

    requests: Counter
    latency: Histogram
    batch_size: Histogram


class StreamNumbers(NamedTuple):
    """What counts the streams of one model."""

    open: Gauge
    pieces: Counter
    first_piece: Histogram
    between_pieces: Histogram
    cut_off: Counter


def printed(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """All of it as Prometheus reads it, and the content type: OpenMetrics, which has exemplars, for who accepts that."""
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


class GatewayMetrics:
    """The gateway's own counters, in a registry of their own. beside: the backend's, which /metrics shows with them."""

    def __init__(self, beside: CollectorRegistry) -> None:
        self.registry = r = CollectorRegistry()
        r.register(beside)
        model = ["model"]
        self.in_flight = Gauge("slotwise_in_flight_requests", "Requests at the model server.", model, registry=r)
        self.queued = Gauge("slotwise_queued_requests", "Requests that wait, for a place or a worker.", model, registry=r)
        self.latency = Histogram("slotwise_request_seconds", "From body read to answer.", model, buckets=SECONDS, registry=r)
        self.batch_size = Histogram(
            "slotwise_batch_size", "Requests in the batch of an answer.", model, buckets=ROWS, registry=r
        )
        self.killers = Counter("slotwise_killers", "Requests that ended their worker twice.", model, registry=r)
        self.sheds = Counter("slotwise_sheds", "Requests refused with 429.", model, registry=r)
        self.streams = StreamNumbers(
            Gauge("slotwise_open_streams", "Answers that have begun to come piece by piece.", model, registry=r),
            Counter("slotwise_pieces", "Pieces of answers that were sent.", model, registry=r),
            Histogram("slotwise_first_piece_seconds", "From body read to first piece.", model, buckets=SECONDS, registry=r),
            Histogram("slotwise_between_pieces_seconds", "From piece to piece.", model, buckets=SECONDS, registry=r),
            Counter("slotwise_cut_off_readers", "Clients that did not read their streams.", model, registry=r),
        )
        self.requests = Counter("slotwise_requests", "Requests by status.", ["model", "status"], registry=r)
        self.up = Gauge("slotwise_server_up", "1 while the model server answers.", registry=r)
        self.restarts = Gauge("slotwise_gateway_restarts", "How often the gateway died and was started again.", registry=r)
        self.memory = Gauge("slotwise_gateway_memory_bytes", "What requests take of the gateway's memory budget.", registry=r)
        self.memory_limit = Gauge(
            "slotwise_gateway_memory_limit_bytes", "The gateway's memory budget for requests.", registry=r
        )
        self.convicted = Gauge("slotwise_convicted_bodies", "Bodies that ended workers and are refused now.", registry=r)
        self.loop_block = Gauge(
            "slotwise_gateway_longest_block_seconds", "How long nobody was answered at most, in the last minute.", registry=r
        )
        self.answered = 0
        self._by_label: dict[tuple[str, int], _AnswerCounts] = {}

    def watch(self, model: str, traffic: ModelTraffic) -> None:
        """Let Prometheus read the two gauges of a model from its traffic, and what alerts ask about."""
        self.in_flight.labels(model).set_function(lambda: traffic.in_flight)
        self.queued.labels(model).set_function(lambda: traffic.queued)
        for counter in (self.killers, self.sheds):  # from 0 on: an increase from nothing is none
            counter.labels(model)

    def keep(self, models: Container[str]) -> None:
        """Forget the labels of every other model."""
        self._by_label.clear()
        counted = (self.in_flight, self.queued, self.latency, self.batch_size, self.sheds, self.requests, self.killers)
        keep_labels((*counted, *self.streams), models)

    def stream(self, model: str) -> StreamNumbers:
        """What counts a stream of this model."""
        numbers = self.streams
        return StreamNumbers(
            numbers.open.labels(model),
            numbers.pieces.labels(model),
            numbers.first_piece.labels(model),
            numbers.between_pieces.labels(model),
            numbers.cut_off.labels(model),
        )

    def answer(self, model: str, status: int, seconds: float | None, batch_size: int, way: RequestWay | None = None) -> None:
        """Count one answer. seconds: None where the request never went to the server. batch_size: 0 where no slot answered.

        way: of one that somebody watches; where its trace is kept, its id is the exemplar of its seconds.
        """
        self.answered += 1
        by = self._by_label.get((model, status))
        if by is None:  # looking one up takes longer than counting
            by = self._by_label[model, status] = _AnswerCounts(
                self.requests.labels(model, str(status)), self.latency.labels(model), self.batch_size.labels(model)
            )
        by.requests.inc()
        if status == 429:
            self.sheds.labels(model).inc()
        if seconds is not None:
            by.latency.observe(seconds, {"trace_id": way.trace_word} if way is not None and way.sampled else None)
        if batch_size:
            by.batch_size.observe(batch_size)
