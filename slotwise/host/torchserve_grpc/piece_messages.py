"""An answer that a call gets piece by piece, each as a message of its own."""

from __future__ import annotations

from slotwise.backends.exchange import RawHeaders
from slotwise.frontend.events.piece_stream import PieceStream, bytes_of
from slotwise.frontend.grpc.call_messages import CallMessages
from slotwise.frontend.inference_request import InferenceRequest
from slotwise.host.torchserve_grpc.torchserve_messages import ANSWERED, INFERENCE


class PieceMessages:
    """The pieces of one answer as messages of its call. sequence: the id that each of them repeats; "": none.

    whole: all of them were given, and there is no error. Where a model does not stream, there are none.
    """

    def __init__(self, messages: CallMessages, sequence: str = "") -> None:
        self.messages, self.sequence = messages, sequence
        self.whole = False

    def opened(self, request: InferenceRequest, headers: RawHeaders) -> PieceStream | None:
        """What takes the pieces; None where the server gives none."""
        return _CallPieces(request, self) if request.gateway.backend.streams else None


class _CallPieces(PieceStream):
    """Takes the pieces of one answer: a text is sent as it is, anything else as JSON."""

    def __init__(self, request: InferenceRequest, answer: PieceMessages) -> None:
        super().__init__(request, needed=False)
        self.answer, self.messages = answer, answer.messages

    @property
    def waiting(self) -> int:
        return self.messages.waiting

    def send(self, piece: bytes) -> None:
        message = INFERENCE.classes[ANSWERED](prediction=bytes_of(piece), sequence_id=self.answer.sequence)
        self.messages.put(message.SerializeToString())

    def finish(self, status: int, headers: RawHeaders, body: bytes) -> bool:
        """As PieceStream's. An error is no piece: it is told apart, whatever was sent."""
        self.answer.whole = super().finish(status, headers, body) and status < 400
        return self.answer.whole

    def end(self, status: int, body: bytes) -> None:
        """Nothing: whoever asked is told."""

    def abort(self) -> None:
        self.messages.cut()
