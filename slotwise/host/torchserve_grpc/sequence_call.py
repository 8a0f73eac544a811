"""StreamPredictions2: requests of one sequence on one call, one after the other, each answered whole or piece by piece.

An error is an answer of its own, and the next request is answered all the same. Source: TorchServe 0.12's InferenceImpl.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from slotwise.backends.exchange import RawHeaders, Refused
from slotwise.frontend.grpc.call import Call
from slotwise.frontend.grpc.message_table import text_field
from slotwise.frontend.grpc.request_stream import RequestOfStream, RequestStream
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

    of, method = INFERENCE_SERVICE, BOTH_WAYS

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


class _SequenceRequest(RequestOfStream):
    """One request of such a call."""

    stream: SequenceCall

    def __init__(self, stream: SequenceCall, call: Call, data: bytes) -> None:
        super().__init__(stream, call, data)
        self.sequence = text_field(data, ID)[:LONGEST_ID]

    def leave(self) -> None:
        """See RequestOfStream."""
        self.call.left()

    async def answered(self) -> int:
        """See RequestOfStream."""
        pieces = PieceMessages(self.messages, self.sequence)
        try:
            written = await self.stream.predict(self.call, self.let_in(), pieces, self.stream.headers_of)
        except Refused:
            self.stream.sequence = self.stream.sequence or self.sequence  # the next one does not begin it
            raise
        if written is not None:
            await self.messages.put_whole(written)
        return 200

    def error(self, end: CallEnd) -> bytes:
        """See RequestOfStream."""
        return error_message(end, self.sequence)


def error_message(end: CallEnd, sequence: str) -> bytes:
    """The answer that tells an error, in TorchServe's words."""
    classes = INFERENCE.classes
    message, _, reason = end.details.rpartition("\n")
    about = classes["Any"](type_url=REASON, value=classes["ErrorInfo"](reason=reason).SerializeToString())
    status = classes["Status"](code=end.code.value[0], message=message, details=[about])
    written: bytes = classes[ANSWERED](status=status, sequence_id=sequence).SerializeToString()
    return written
