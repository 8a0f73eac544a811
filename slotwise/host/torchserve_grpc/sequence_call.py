"""StreamPredictions2: requests of one sequence on one call, one after the other, each answered whole or piece by piece.

An error is an answer of its own, and the next request is answered all the same. Source: TorchServe 0.12's InferenceImpl.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from slotwise.backends.exchange import CLIENT_GONE, RawHeaders
from slotwise.frontend.grpc.call import Call
from slotwise.frontend.grpc.message_table import text_field
from slotwise.frontend.grpc.request_stream import RequestStream
from slotwise.frontend.grpc.service import CallEnd, GrpcService, Messages
from slotwise.host.torchserve_grpc.piece_messages import PieceMessages
from slotwise.host.torchserve_grpc.torchserve_messages import ANSWERED, ASKED, INFERENCE, INFERENCE_SERVICE
from slotwise.host.torchserve_grpc.torchserve_service import CallRefused, class_of

BOTH_WAYS = "StreamPredictions2"
REASON = "type.googleapis.com/google.rpc.ErrorInfo"  # what is packed in an error's details
ID = INFERENCE.classes[ASKED].DESCRIPTOR.fields_by_name["sequence_id"].number
LONGEST_ID = 256  # characters
BAD_ID = f"sequence_id is printable ASCII, and not longer than {LONGEST_ID}"
ONE_SEQUENCE = "a call is of one sequence: ask for another one on a call of its own"

HeadersOf = Callable[[Any], RawHeaders]  # those of a request's sequence, by its message
Predict = Callable[[Call, bytes, PieceMessages, HeadersOf], Awaitable[bytes | None]]


class SequenceCall(RequestStream):
    """One call of it. predict: has a message answered. names: of the headers that carry a sequence's id, begin and end it."""

    def __init__(
        self, service: GrpcService, predict: Predict, call: Call, given: Messages, names: tuple[str, str, str]
    ) -> None:
        super().__init__(service, call, given)
        self.predict, self.names, self.sequence = predict, names, ""
        call.headers = [header for header in call.headers if header[0].decode("latin-1") not in names]  # a message's own

    def request(self, call: Call, data: bytes) -> _SequenceRequest:
        """See RequestStream."""
        return _SequenceRequest(self, call, data)

    def headers_of(self, message: Any) -> RawHeaders:
        """The sequence's headers that go with a message. Raises CallRefused where it is of none, or of another one.

        The call's first message begins the sequence, where it does not say by an input of that header's name whether it does;
        a message that has an input of the other name says whether it ends it.
        """
        sequence = message.sequence_id
        if not sequence:
            raise CallRefused(400, "Parameter sequenceId is required.", "BadRequestException.()", grpc.StatusCode.INTERNAL)
        if len(sequence) > LONGEST_ID or not (sequence.isascii() and sequence.isprintable()):
            raise CallRefused(400, BAD_ID, class_of("BadRequestException"))
        if self.sequence not in ("", sequence):
            raise CallRefused(400, ONE_SEQUENCE, class_of("BadRequestException"))
        id_, start, end = self.names
        begins = message.input.get(start, b"" if self.sequence else b"true")
        ends = message.input.get(end, b"")
        self.sequence = sequence
        told = [name for name, value in ((start, begins), (end, ends)) if value.lower() == b"true"]
        return [(id_.encode(), sequence.encode()), *((name.encode(), b"true") for name in told)]


class _SequenceRequest:
    """One request of such a call. read: see RequestOfStream."""

    def __init__(self, asking: SequenceCall, call: Call, data: bytes) -> None:
        self.asking, self.call, self.service, self.data = asking, call, asking.service, data
        self.sequence = text_field(data, ID)[:LONGEST_ID]
        self.read = asyncio.Event()

    def leave(self) -> None:
        """See RequestOfStream."""
        self.call.left()

    async def answer(self) -> None:
        """See RequestOfStream."""
        observer, messages, status = self.service.gateway.observer, self.asking.messages, 0
        if observer is not None:
            self.call.begin(observer, f"/{INFERENCE_SERVICE}/{BOTH_WAYS}")
        try:
            self.service.let_in(BOTH_WAYS, self.call)  # its token may have ended since the call began
            data, self.data = self.data, b""
            pieces = PieceMessages(messages, self.sequence)
            written = await self.asking.predict(self.call, data, pieces, self.asking.headers_of)
            if written is not None:
                await messages.put_whole(written)
            status = 200
        except Exception as error:
            end = self.service.failed(BOTH_WAYS, self.call, error)
            if end.status != CLIENT_GONE:
                messages.put(error_message(end, self.sequence))
        finally:
            self.read.set()
            if observer is not None:
                observer.end(self.call.scope(""), status)
        await messages.taken()  # so that what it is answered is bounded, too


def error_message(end: CallEnd, sequence: str) -> bytes:
    """The answer that tells an error, in TorchServe's words."""
    classes = INFERENCE.classes
    message, _, reason = end.details.rpartition("\n")
    about = classes["Any"](type_url=REASON, value=classes["ErrorInfo"](reason=reason).SerializeToString())
    status = classes["Status"](code=end.code.value[0], message=message, details=[about])
    written: bytes = classes[ANSWERED](status=status, sequence_id=sequence).SerializeToString()
    return written
