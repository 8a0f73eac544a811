"""The requests of a worker that streams: each joins the runner's streams when it is decoded, and is answered as it asked.

Who asked for pieces gets each when it is there. Everybody else gets the whole answer, made by the handler's `encode` and
`respond` as in a closed batch. An error is an answer of its own, whatever was sent before it.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Hashable
from dataclasses import dataclass, field

from slotwise.worker.answer import REQUEST_ID, CheckedHeaders, Refusal
from slotwise.worker.batch import Batch, Row
from slotwise.worker.budget import Budget
from slotwise.worker.hosts import frames
from slotwise.worker.hosts.frames import Frame
from slotwise.worker.pipeline import Pipeline
from slotwise.worker.request import Request
from slotwise.worker.slot_errors import BadRequest, ModelFault, SlotError
from slotwise.worker.steps.streams import Runner, Stream, StreamPiece
from slotwise.worker.streaming.piece_objects import parsed, too_many_bytes

logger = logging.getLogger(__name__)

SEED = "x-seed"
EVENTS = "text/event-stream"


@dataclass(eq=False)
class OpenRequest:
    """A request that is not answered yet. wants_pieces: as they come. sent: those that another worker has sent.

    batch: of this request alone. pieces: of each of its rows. running: how many have not ended. bytes_out: of all pieces.
    next: streams that begin only when the one before has ended and is encoded.
    """

    id: int
    batch: Batch
    wants_pieces: bool
    sent: tuple[bytes, ...] = ()
    pieces: list[list[bytes]] = field(default_factory=list)
    running: int = 0
    next: list[Stream] = field(default_factory=list)
    bytes_out: int = 0
    headed: bool = False
    began: float = field(default_factory=time.perf_counter)

    @property
    def request(self) -> Request:
        """The request itself."""
        return self.batch.requests[0]


def alone(batch: Batch, i: int) -> Batch:
    """Slot i of a decoded batch as a batch of its own."""
    one = Batch([batch.requests[i]])
    decoded, slot = batch.slots[i], one.slots[0]
    slot.error = decoded.error
    slot.records = [Row(0, record.item, 0) if isinstance(record, Row) else record for record in decoded.records]
    one.rows = [record for record in slot.records if isinstance(record, Row)]
    slot.unencoded = len(one.rows)
    one.decode_ms = batch.decode_ms
    return one


def seed_of(request: Request) -> int:
    """What all that is drawn for this request follows from: its header x-seed, or else its id. Raises BadRequest."""
    given = request.headers.get(SEED)
    if given is None:
        return int.from_bytes(hashlib.sha256(request.id.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise BadRequest("x-seed must be a whole number from 0 to 999999999999999999")
    return int(given)


class StreamDesk:
    """What is open in one worker. Everything happens in one thread. ended: batches that are over, to be measured."""

    def __init__(self, pipeline: Pipeline, runner: Runner) -> None:
        self.pipeline, self.runner = pipeline, runner
        self.open: dict[int, OpenRequest] = {}
        self.ended: list[Batch] = []

    def take(self, one: OpenRequest) -> list[Frame]:
        """Open a request that is decoded; returns its answer where it has one already."""
        self.open[one.id] = one
        rows, slot = one.batch.rows, one.batch.slots[0]
        one.pieces, one.running = [[] for _ in rows], len(rows)
        try:
            seed = seed_of(one.request)
            if slot.error is None and one.wants_pieces:
                self._check_one_item(one)
        except SlotError as error:
            slot.error = slot.error or Refusal.of(error)
        if slot.error is not None or not rows:
            return [self._answer(one)]
        sent, until = one.sent if one.wants_pieces else (), one.request.until
        streams = [Stream((one.id, k), row.item, one.id, seed + k, until, sent) for k, row in enumerate(rows)]
        if self.pipeline.apart:
            streams, one.next = streams[:1], streams[1:]
        self.runner.offer(streams)
        return []

    def _check_one_item(self, one: OpenRequest) -> None:
        records = one.batch.slots[0].records
        if len(records) != 1:
            raise BadRequest(f"a stream answers one input, and this body has {len(records)}: ask for the whole answer")
        if isinstance(records[0], Refusal):
            one.batch.slots[0].error = records[0]

    def cancel(self, identity: int) -> list[Frame]:
        """Nobody wants this request's answer any more: its slot is free. Returns the end of it; nothing where it had ended."""
        one = self.open.pop(identity, None)
        if one is None:
            return []
        self._leave(one)
        return [Frame(frames.PIECE, identity)]

    def _leave(self, one: OpenRequest) -> None:
        for k in range(len(one.batch.rows)):
            self.runner.cancel((one.id, k))

    @property
    def busy(self) -> bool:
        """Whether a turn would do anything."""
        return self.runner.busy

    def turn(self) -> list[Frame]:
        """One turn of the runner: what is to be sent of it, in order."""
        out: list[Frame] = []
        for event in self.runner.turn():
            one, k = self._whose(event.id)
            if one is None:
                continue  # it was answered with an error meanwhile
            if isinstance(event, StreamPiece):
                out += self._piece(one, k, event.data)
            else:
                out += self._row_ended(one, k, event.error)
        return out

    def _whose(self, stream_id: Hashable) -> tuple[OpenRequest | None, int]:
        assert isinstance(stream_id, tuple)
        identity, k = stream_id
        return self.open.get(identity), k

    def _piece(self, one: OpenRequest, k: int, data: bytes) -> list[Frame]:
        one.bytes_out += len(data)
        most = self.pipeline.settings.max_response_bytes
        if one.bytes_out + sum(map(len, one.sent)) > most:
            return [self._fail(one, too_many_bytes(most))]
        if not one.wants_pieces:
            one.pieces[k].append(data)
            return []
        text = b""
        if not one.headed:
            headers = self.pipeline.hooks.headers()
            if isinstance(headers, SlotError):
                return [self._fail(one, headers)]
            headers["x-decode-ms"] = f"{one.batch.decode_ms:.2f}"
            text = frames.answer_text(200, EVENTS, headers.with_slot(0, one.request.headers.get(REQUEST_ID, "")))
            one.headed = True
        return [Frame(frames.PIECE, one.id, text, data, frames.MORE)]

    def _row_ended(self, one: OpenRequest, k: int, error: Refusal | None) -> list[Frame]:
        if one.wants_pieces and error is None:
            del self.open[one.id]
            self._measured(one)
            return [Frame(frames.PIECE, one.id)]
        row = one.batch.rows[k]
        if error is not None:
            row.refuse(error)
            one.batch.slots[0].error = error if one.wants_pieces else None
        else:
            row.ran(parsed(one.pieces[k]))
        if self.pipeline.apart:
            row.result = row.error or self.pipeline.hooks.encode(row, one.request, last=False)
            self.runner.offer(one.next[:1])
            del one.next[:1]
        one.running -= 1
        return [] if one.running else [self._answer(one)]

    def _fail(self, one: OpenRequest, error: SlotError) -> Frame:
        """End a request as a whole with this error."""
        self._leave(one)
        one.batch.slots[0].error = Refusal.of(error)
        return self._answer(one)

    def _answer(self, one: OpenRequest) -> Frame:
        """The whole answer, or the error, of a request none of whose rows runs any more."""
        del self.open[one.id]
        batch, settings = one.batch, self.pipeline.settings
        self._measured(one)
        try:
            self.pipeline.respond(batch, Budget(1, settings.response_timeout_s, settings.decode_budget_ms))
            answer = batch.answers[0]
        except Exception:
            logger.exception("request %s: the worker itself failed on it", one.request.id)
            answer = Refusal.of(ModelFault("the handler failed")).answer(CheckedHeaders())
        return frames.of_answer(one.id, answer)

    def _measured(self, one: OpenRequest) -> None:
        one.batch.total_ms = (time.perf_counter() - one.began) * 1000
        one.batch.inference_ms = max(0.0, one.batch.total_ms - one.batch.decode_ms)
        self.ended.append(one.batch)
