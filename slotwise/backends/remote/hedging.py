"""Decide when an answer is late, and whether another copy of its request may be sent: a hedge.

Both servers can lose a request that they have taken: a thread takes the first job from the queue, waits for more to fill
the batch, and is interrupted when its worker dies; nobody answers those jobs any more. No error and no broken connection
tells of it, only time does.

An answer is late after twice the time that 95 of 100 recent answers of its model took. Because a slow server must not get
even more to do, a model has a budget: of the requests of the last PERIOD_S seconds, a share of HEDGED_SHARE may be hedged.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

LATE_AT_LEAST_S = 0.1  # a pause of Java's garbage collector is no lost request
LATE_WITHOUT_TIMES_S = 5.0  # until there are RANK_EVERY answers to learn from
RANK_EVERY = 32  # answers, between two looks at the 95th percentile
RECENT_ANSWERS = 512  # the percentile is taken from these
PERIOD_S = 10
HEDGED_SHARE = 0.05
HEDGES_AT_LEAST = 32  # in PERIOD_S, also where there were few requests
COPIES_MAX = 4  # of one request: the first and its hedges


@dataclass
class _SecondCount:
    """Requests and hedges in one second of the clock."""

    at: int
    requests: int = 0
    hedges: int = 0


class Hedging:
    """The answer times and the hedge budget of one model. late_s: an answer that takes longer is late."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.late_s = LATE_WITHOUT_TIMES_S
        self._clock = clock
        self._answer_times_s: deque[float] = deque(maxlen=RECENT_ANSWERS)
        self._answers_since_ranking = 0
        self._seconds: deque[_SecondCount] = deque()

    def count_request(self) -> None:
        """Count one more request; a share of all requests may be hedged."""
        self._this_second().requests += 1

    def record_answer(self, seconds: float) -> None:
        """Learn from one answer how long answers take."""
        self._answer_times_s.append(seconds)
        self._answers_since_ranking += 1
        if self._answers_since_ranking >= RANK_EVERY:
            self._answers_since_ranking = 0
            ranked = sorted(self._answer_times_s)
            percentile_95 = ranked[int(0.95 * len(ranked))]
            self.late_s = max(LATE_AT_LEAST_S, 2 * percentile_95)

    def take_from_budget(self) -> bool:
        """Whether one more hedge may be sent now; it is counted where it may."""
        this_second = self._this_second()
        requests = sum(second.requests for second in self._seconds)
        hedges = sum(second.hedges for second in self._seconds)
        if hedges >= max(HEDGES_AT_LEAST, HEDGED_SHARE * requests):
            return False
        this_second.hedges += 1
        return True

    def _this_second(self) -> _SecondCount:
        """The counts of the current second; those that are over PERIOD_S old are forgotten."""
        at = int(self._clock())
        if not self._seconds or self._seconds[-1].at != at:
            self._seconds.append(_SecondCount(at))
            while self._seconds[0].at <= at - PERIOD_S:
                self._seconds.popleft()
        return self._seconds[-1]
