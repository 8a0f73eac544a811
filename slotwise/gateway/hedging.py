"""Decide when an answer is late, and whether another copy of its request may be sent.

Both servers can lose a request that they have taken: a thread takes the first job from the queue, waits for more to fill
the batch, and is interrupted when its worker dies; nobody answers those jobs any more. No error and no broken connection
tells of it, only time does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

FLOOR_S = 0.1  # a pause of Java's collector is no lost request
UNKNOWN_S = 5.0  # before there are ENOUGH answers
ENOUGH = 32
KEPT = 512  # answers that the p95 is taken from
PERIOD_S = 10
SHARE = 0.05  # of the requests of the last PERIOD_S
LEAST = 32  # in PERIOD_S, also where there were few requests
COPIES = 4  # of one request at most, the first and what is hedged


@dataclass
class _SecondCount:
    """What happened in one second of the clock."""

    at: int
    requests: int = 0
    hedges: int = 0


class Hedging:
    """One model's answer times and hedges. `enabled`: false where a second copy would do harm."""

    def __init__(self, enabled: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self.enabled = enabled
        self.late_s = UNKNOWN_S  # an answer that takes longer is late: twice the p95
        self._clock = clock
        self._times_s: deque[float] = deque(maxlen=KEPT)
        self._unranked = 0
        self._seconds: deque[_SecondCount] = deque()

    def count_request(self) -> None:
        """One more request was sent."""
        self._now().requests += 1

    def answered(self, seconds: float) -> None:
        """One copy was answered by a slot after so many seconds."""
        self._times_s.append(seconds)
        self._unranked += 1
        if self._unranked >= ENOUGH:
            self._unranked = 0
            ranked = sorted(self._times_s)
            self.late_s = max(FLOOR_S, 2 * ranked[int(0.95 * len(ranked))])

    def take(self) -> bool:
        """Whether one more copy may be sent now; it is counted where it may."""
        now = self._now()
        requests = sum(second.requests for second in self._seconds)
        hedges = sum(second.hedges for second in self._seconds)
        if not self.enabled or hedges >= max(LEAST, SHARE * requests):
            return False
        now.hedges += 1
        return True

    def _now(self) -> _SecondCount:
        """The current second; those that are over PERIOD_S old are forgotten."""
        at = int(self._clock())
        if not self._seconds or self._seconds[-1].at != at:
            self._seconds.append(_SecondCount(at))
            while self._seconds[0].at <= at - PERIOD_S:
                self._seconds.popleft()
        return self._seconds[-1]
