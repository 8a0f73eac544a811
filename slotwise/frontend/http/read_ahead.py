"""What has come on a connection behind the request that is being answered, or that is read in turns."""

from __future__ import annotations

from slotwise.frontend.http.http_framing import Malformed
from slotwise.frontend.http.request_head import END_OF_HEAD, read_head

AHEAD_BYTES = 64 * 1024  # that may wait behind a request which is being answered


class ReadAhead:
    """Bytes that cannot be taken apart yet. They are counted each time that twice as many requests may have come."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._counted = 0

    def swap(self, data: bytearray, taken: int) -> None:
        """These were there, and so much of them is taken."""
        self.data = data[taken:] if taken else data
        self._counted = 0 if taken else self._counted

    def cut(self, most: int) -> bool:
        """Whether more than `most` requests have begun in it; the rest is dropped then."""
        heads = self.data.count(END_OF_HEAD)  # which may stand in a body, too
        if heads <= max(most, 2 * self._counted):
            return False
        self._counted = heads
        end = end_of_requests(self.data, most)
        if end is not None:
            del self.data[end:]
        return end is not None


def end_of_requests(data: bytearray, most: int) -> int | None:
    """Where the first `most` requests in data end; None where no more than these have begun, or they cannot be counted."""
    at = 0
    try:
        for _ in range(most):
            at += 2 * data.startswith(b"\r\n", at)
            head_end = data.find(END_OF_HEAD, at)
            if head_end < 0:
                return None
            start, at = at, head_end + len(END_OF_HEAD)
            body = read_head(bytes(memoryview(data)[start:at])).body()
            _, at = body.take(data, at, len(data))
            if not body.complete:  # or it has more chunks than are counted
                return None
    except Malformed:
        return None  # which is answered in its turn
    return at if len(data) - at > len(b"\r\n") else None
