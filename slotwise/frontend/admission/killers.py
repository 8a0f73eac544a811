"""Remember the bodies that end workers, and who sends them.

A body that ended its worker twice, the second time with nothing else in the batch, is refused for a while without being
sent. The same bytes for another version or archive, with another query, or of another type are another body: they may be
somebody else's, who did nothing. One changed byte makes it another one, too; so a sender of several such bodies is refused for
a while, where it asks the model whose workers they ended. A sender is a key or an address; where a proxy does not say whose
address, only bodies count.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from slotwise.backends.exchange import Refused, digest_of

BODY_S = 600.0  # a body is remembered this long
BODIES = 4096
SENDER_S = 60.0
SENDERS = 4096
ALLOWED = 3  # so many bodies of one sender within SENDER_S, and the next request is refused


class Killers:
    """The bodies that were found to end workers, and their senders; both bounded, the oldest forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bodies: OrderedDict[bytes, float] = OrderedDict()
        self._senders: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()

    @property
    def count(self) -> int:
        """How many bodies are refused now."""
        since = self._clock() - BODY_S
        return sum(ended_at > since for ended_at in self._bodies.values())

    def remember(self, model: str, digest: bytes, sender: str) -> None:
        """The body with this digest ended two workers of the model. sender: whose it was; "" where nobody knows."""
        now = self._clock()
        self._bodies[digest] = now
        self._bodies.move_to_end(digest)
        if sender:
            self._senders.setdefault((model, sender), deque(maxlen=ALLOWED)).append(now)
            self._senders.move_to_end((model, sender))
        for kept, most in ((self._bodies, BODIES), (self._senders, SENDERS)):
            while len(kept) > most:
                kept.popitem(last=False)

    def refuse_body(self, model: str, body: bytes, read_by: Callable[[], str] = str) -> None:
        """Raise Refused (422) where this body has ended workers of the model. read_by(): as `digest_of` has it."""
        if not self._bodies:
            return
        ended_at = self._bodies.get(digest_of(model, body, read_by()))
        if ended_at is not None and self._clock() - ended_at < BODY_S:
            raise Refused(
                422, "this body has ended the model's workers: it is not sent again; the model's log says why a worker ended"
            )

    def refuse_sender(self, model: str, sender: str) -> None:
        """Raise Refused (429) where too many bodies of this sender have ended workers of the model just now."""
        times = self._senders.get((model, sender)) if self._senders else None
        if times is None or len(times) < ALLOWED or times[-1] - times[0] > SENDER_S:
            return
        left_s = times[-1] + SENDER_S - self._clock()
        if left_s > 0:
            raise Refused(
                429, f"{ALLOWED} of your requests ended workers of this model, try again later", retry_after_s=math.ceil(left_s)
            )
