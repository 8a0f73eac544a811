"""Send each piece of a stream once, also where the stream is computed a second time."""

from __future__ import annotations

from slotwise.worker.answer import serialise
from slotwise.worker.slot_errors import ModelFault

OTHER_PIECES = "the stream broke off, and computed again it is another one"


class Outlet:
    """The pieces of one stream on their way out. sent: those that were sent before it was computed (again)."""

    def __init__(self, sent: tuple[bytes, ...]) -> None:
        self.sent = sent
        self.repeated = 0

    def put(self, piece: object) -> bytes | None:
        """The piece as it is sent; None where it was sent before.

        Raises ModelFault where it cannot be sent, or is not what was sent before in its place.
        """
        try:
            data = bytes(serialise(piece))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an author's object may do anything while it is written
            raise ModelFault("a piece of the answer could not be encoded") from error
        if self.repeated == len(self.sent):
            return data
        if data != self.sent[self.repeated]:
            raise ModelFault(OTHER_PIECES)
        self.repeated += 1
        return None

    def end(self) -> None:
        """The stream is over. Raises ModelFault where more of it had been sent."""
        if self.repeated < len(self.sent):
            raise ModelFault(OTHER_PIECES)
