"""Bugs that are planted in the queue of streams, each of which a history must find."""

from __future__ import annotations

from typing import Any

from slotwise.backends.exchange import RawHeaders
from slotwise.backends.local.queue_members import BatchWorker, StreamWorker, WaitingRequest
from slotwise.backends.local.stream_queue import StreamQueue


class ForgetsWhatWasSent(StreamQueue):
    """After a death a stream begins anew."""

    def ended(self, worker: BatchWorker) -> None:
        for one in worker.in_hand.values():
            one.sent.clear()
        super().ended(worker)


class NeverCancels(StreamQueue):
    """A client that has gone keeps its slot."""

    def joined(self, worker: BatchWorker) -> None:
        assert isinstance(worker, StreamWorker)
        worker.cancel = lambda request_id: None
        super().joined(worker)


class LosesStreams(StreamQueue):
    """Who was in hand at a death is forgotten."""

    def _suspect(self, one: WaitingRequest, *, convicted: bool) -> None:
        if convicted:
            super()._suspect(one, convicted=True)


class ConvictsInCompany(StreamQueue):
    """The second death convicts, whoever else was there."""

    def _suspect(self, one: WaitingRequest, *, convicted: bool) -> None:
        super()._suspect(one, convicted=one.deaths > 1)


class NeverConvicts(StreamQueue):
    """A body may end workers for ever."""

    def _suspect(self, one: WaitingRequest, *, convicted: bool) -> None:
        super()._suspect(one, convicted=False)


class LetsAllJoin(StreamQueue):
    """Whoever is under suspicion is no longer so at once."""

    def _hand(self, worker: StreamWorker, one: WaitingRequest) -> None:
        super()._hand(worker, one)
        worker.trying = None


class BelievesAnything(StreamQueue):
    """A piece of nobody's is dropped in silence."""

    def piece(self, worker: StreamWorker, request_id: int, headers: RawHeaders | None, data: bytes) -> None:
        if request_id in worker.in_hand:
            super().piece(worker, request_id, headers, data)


class TakesWholeForStream(StreamQueue):
    """A whole answer ends a stream."""

    def answered(self, worker: BatchWorker, request_id: int, answer: Any) -> None:
        one = worker.in_hand.get(request_id)
        if one is not None and isinstance(worker, StreamWorker) and answer.status < 400:
            self._let_go(worker, one)
            if one.open:
                one.answer.set_result(answer)
        else:
            super().answered(worker, request_id, answer)


class SendsThoseWhoLeft(StreamQueue):
    """A piece goes to a client as often as it comes."""

    def piece(self, worker: StreamWorker, request_id: int, headers: RawHeaders | None, data: bytes) -> None:
        super().piece(worker, request_id, headers, data)
        one = worker.in_hand[request_id]
        if one.deaths and one.request.pieces and one.open and not one.left:
            one.request.pieces.take([], data)


class KeepsHeaders(StreamQueue):
    """What was known of an answer stays for ever."""

    def _let_go(self, worker: StreamWorker, one: WaitingRequest) -> None:
        kept = worker.headers.get(one.id)
        super()._let_go(worker, one)
        if kept is not None:
            worker.headers[one.id] = kept


class HangsUpAtOnce(StreamQueue):
    """Who hangs up is no longer in hand, so nobody learns what it does to workers."""

    def _left(self, one: WaitingRequest) -> None:
        if one.held_by is not None:
            one.held_by.in_hand.pop(one.id, None)
        super()._left(one)
        one.refuse(499, "its client has gone")


class OverfillsWorkers(StreamQueue):
    """A worker gets all that wait."""

    def _join(self, workers: Any) -> None:
        for worker in workers:
            worker.slots = 1000
        super()._join(workers)


STREAMING_BUGS = [
    ForgetsWhatWasSent, NeverCancels, LosesStreams, ConvictsInCompany, NeverConvicts, LetsAllJoin, BelievesAnything,
    TakesWholeForStream, SendsThoseWhoLeft, KeepsHeaders, HangsUpAtOnce, OverfillsWorkers,
]  # fmt: skip
