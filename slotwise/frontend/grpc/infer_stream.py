"""Triton's ModelStreamInfer: many requests on one call, each answered by its own id, whole or piece by piece.

Each is let in as a call of its own: with its key, its deadline and its memory. An error ends the request that it is about, and
no other. Source: Triton's "extension_decoupled" and its clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from slotwise.backends.exchange import CLIENT_GONE, RawHeaders
from slotwise.backends.interface import Refused
from slotwise.frontend.admission.limits import ClientGone
from slotwise.frontend.events.piece_stream import PieceStream, bytes_of
from slotwise.frontend.grpc import open_inference as open_inference_grpc
from slotwise.frontend.grpc.call import Call
from slotwise.frontend.grpc.infer import AskedModel, Infer, answering_now
from slotwise.frontend.grpc.message_table import text_field
from slotwise.frontend.grpc.open_inference_messages import CLASSES, SERVICE
from slotwise.frontend.grpc.request_stream import RequestOfStream, RequestStream
from slotwise.frontend.grpc.service import CallEnd, GrpcService, Messages
from slotwise.frontend.inference_request import InferenceRequest
from slotwise.frontend.protocols.each_record import answered
from slotwise.frontend.protocols.open_inference_outputs import InferRequest
from slotwise.frontend.protocols.records import JSON, ProtocolFault, RecordAnswer, RecordBody, failed_alike
from slotwise.frontend.protocols.routes import REPLY_COPIES

STREAM_INFER = "ModelStreamInfer"
MOST_AT_ONCE = 16  # requests of one call
LONGEST_ID = 1024  # characters, of what every response repeats
ID = CLASSES["ModelInferRequest"].DESCRIPTOR.fields_by_name["id"].number


class InferStream(RequestStream):
    """One call of it."""

    of, method = SERVICE, STREAM_INFER
    most_at_once = MOST_AT_ONCE

    def __init__(self, service: GrpcService, infer: Infer, call: Call, given: Messages) -> None:
        super().__init__(service, call, given)
        self.infer = infer

    def request(self, call: Call, data: bytes) -> _StreamedRequest:
        """See RequestStream."""
        return _StreamedRequest(self, call, data)


class _StreamedRequest(RequestOfStream):
    """One request of a stream. whole: the request itself."""

    stream: InferStream

    def __init__(self, stream: InferStream, call: Call, data: bytes) -> None:
        super().__init__(stream, call, data)
        self.identity = text_field(data, ID)[:LONGEST_ID]
        gateway = self.service.gateway
        self.whole = InferenceRequest("", call.deadline, gateway=gateway, client_deadline=call.client_deadline)
        self.wants_end = False

    def leave(self) -> None:
        """See RequestOfStream."""
        self.whole.leave()

    def release(self) -> None:
        """See RequestOfStream."""
        self.whole.release()

    def error(self, end: CallEnd) -> bytes:
        """See RequestOfStream."""
        return open_inference_grpc.stream_error(end.status, end.details, self.identity)

    async def answered(self) -> int:
        """See RequestOfStream. Raises Refused and ProtocolFault."""
        whole, infer = self.whole, self.stream.infer
        try:
            whole.hold(self.let_in())
            asked, of = await infer.read(whole, self.call, self._parameters)
            if len(asked.identity) > LONGEST_ID:
                raise ProtocolFault(f"the request's id is longer than {LONGEST_ID} characters")
        except ProtocolFault:
            whole.bill.pay_anyhow(1)
            raise
        finally:
            self.data = b""
        if self.call.gone.is_set():  # who leaves from here on is told to the backend
            raise ClientGone
        record = asked.records[0]
        if len(asked.records) != 1 or isinstance(record, RecordAnswer) or not self.service.gateway.backend.streams:
            self.read.set()
            answers = await answered(infer.forward, whole, asked.records, self.call.gone)
        else:
            pieces = _InferPieces(self, asked, of)
            try:
                status, _, body = await self._one(record, pieces)
                if (pieces.begun or whole.pieces is pieces) and pieces.finish(status, [], body):
                    return status
            finally:
                pieces.stop()
            whole.hold_bytes(len(body))
            answers = [RecordAnswer(status, body)]
        failed = failed_alike(answers)
        if failed:
            self._failed(failed.status, failed.message)
            return failed.status
        work, size = self.service.gateway.large_work, sum(len(answer.body) for answer in answers)
        async with work.turn(size):
            with whole.borrowed(REPLY_COPIES * size):
                written = await work.run(size, open_inference_grpc.streamed, asked, *answering_now(whole, of), answers, True)
        del answers
        whole.hold_bytes(len(written))
        await self.messages.put_whole(written)
        return 200

    async def _one(self, record: RecordBody, pieces: PieceStream) -> tuple[int, RawHeaders, bytes]:
        """What becomes of the only record, whose pieces are taken as they come."""
        whole = self.whole
        whole.body, whole.pieces = record.body, pieces
        whole.headers |= {"content-type": record.content_type, "accept": JSON}
        whole.headers.pop("content-encoding", None)
        answering = asyncio.ensure_future(self.stream.infer.forward.record(whole, self.call.gone))
        await asyncio.sleep(0)  # it has begun to wait for its place
        if self.call.gone.is_set():  # it left before the backend could be told
            whole.leave()
        self.read.set()
        return await answering

    def _parameters(self, given: Mapping[str, Any]) -> None:
        """Read those of the message."""
        self.wants_end = open_inference_grpc.WANTS_END in given and given[open_inference_grpc.WANTS_END].bool_param

    def _failed(self, status: int, message: str) -> None:
        if status != CLIENT_GONE:
            self.messages.put(open_inference_grpc.stream_error(status, message, self.identity))


class _InferPieces(PieceStream):
    """Takes the pieces of one request, each as the answer of its record."""

    def __init__(self, asking: _StreamedRequest, asked: InferRequest, of: AskedModel) -> None:
        super().__init__(asking.whole, needed=False)
        self.asking, self.asked, self._of = asking, asked, of

    @property
    def of(self) -> AskedModel:
        """Who answers."""
        return answering_now(self.asking.whole, self._of)

    @property
    def waiting(self) -> int:
        """Bytes that the client has not taken yet."""
        return self.asking.messages.waiting

    def send(self, piece: bytes) -> None:
        """Send a piece. Raises Refused where it has not the outputs that are wanted."""
        answers = [RecordAnswer(200, bytes_of(piece))]
        try:
            message = open_inference_grpc.streamed(self.asked, *self.of, answers, False)
        except ProtocolFault as fault:
            raise Refused(fault.status, fault.message) from None
        self.asking.messages.put(message)

    def end(self, status: int, body: bytes) -> None:
        """Send the error, or the end to who wants it."""
        if status >= 400:
            self.asking._failed(status, RecordAnswer(status, body).message)
        elif self.asking.wants_end:
            name, version, _ = self.of
            self.asking.messages.put(open_inference_grpc.stream_end(name, version, self.asked.identity))

    def abort(self) -> None:
        """Send nothing more to this client."""
        self.asking.messages.cut()
