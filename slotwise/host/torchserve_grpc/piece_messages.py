"""An answer that a call gets piece by piece, each as a message of its own."""

from __future__ import annotations

from slotwise.backends.exchange import RawHeaders
from slotwise.frontend.events.piece_stream import PieceStream, bytes_of
from slotwise.frontend.grpc.call_messages import CallMessages
from slotwise.frontend.inference_request import InferenceRequest
from slotwise.host.torchserve_grpc.torchserve_messages import ANSWERED, INFERENCE


class PieceMessages(CallMessages):
    """The messages of one call, from its model to its client.

    whole: all of them were given, and there is no error. Where a model does not stream, there are none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.whole = False

    def opened(self, request: InferenceRequest, headers: RawHeaders) -> PieceStream | None:
        """What takes the pieces; None where the server gives none."""
        return _CallPieces(request, self) if request.gateway.backend.streams else None


class _CallPieces(PieceStream):
    """Takes the pieces of one answer: a text is sent as it is, anything else as JSON."""

    def __init__(self, request: InferenceRequest, messages: PieceMessages) -> None:
        super().__init__(request, needed=False)
        self.messages = messages

    @property
    def waiting(self) -> int:
        return self.messages.waiting

    def send(self, piece: bytes) -> None:
        self.messages.put(INFERENCE.classes[ANSWERED](prediction=bytes_of(piece)).SerializeToString())

    def finish(self, status: int, headers: RawHeaders, body: bytes) -> bool:
        """As PieceStream's. An error is told by how the call ends, whatever was sent."""
        self.messages.whole = super().finish(status, headers, body) and status < 400
        return self.messages.whole

    def end(self, status: int, body: bytes) -> None:
        """Nothing: the call ends."""

    def abort(self) -> None:
        self.messages.cut()
