"""An answer that a call gets piece by piece, each as a message of its own."""

from __future__ import annotations

import asyncio
from collections import deque

from slotwise.backends.exchange import CLIENT_GONE, RawHeaders, Refused
from slotwise.frontend.events.piece_stream import PieceStream, bytes_of
from slotwise.frontend.grpc.call import Call
from slotwise.frontend.inference_request import InferenceRequest
from slotwise.host.torchserve_grpc.torchserve_messages import ANSWERED, INFERENCE


class PieceMessages:
    """The messages of one call, from its model to its client. waiting: bytes that the client has not taken yet.

    whole: all of them were given, and there is no error. Where a model does not stream, there are none.
    """

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.waiting = 0
        self.whole = self.over = self.cut_off = False
        self.came = asyncio.Event()
        self.writing: asyncio.Timeout | None = None

    def opened(self, request: InferenceRequest, headers: RawHeaders) -> PieceStream | None:
        """What takes the pieces; None where the server gives none."""
        return _CallPieces(request, self) if request.gateway.backend.streams else None

    def put(self, message: bytes) -> None:
        """One more."""
        self.waiting += len(message)
        self.messages.append(message)
        self.came.set()

    def close(self) -> None:
        """There is no more of them."""
        self.over = True
        self.came.set()

    def cut(self) -> None:
        """The client is to get no more: it does not read."""
        self.cut_off = True
        self.messages.clear()
        if self.writing is not None:
            self.writing.reschedule(0)

    async def write_to(self, call: Call) -> None:
        """Write them as they come, until there are no more. Raises Refused where the client is cut off."""
        try:
            async with asyncio.timeout(None) as self.writing:
                while not (self.over or self.cut_off) or self.messages:
                    await self.came.wait()
                    self.came.clear()
                    while self.messages:
                        message = self.messages.popleft()
                        await call.write(message)
                        self.waiting -= len(message)
        except TimeoutError:
            pass
        finally:
            self.writing = None
        if self.cut_off:
            raise Refused(CLIENT_GONE, "the client does not read its stream")


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
