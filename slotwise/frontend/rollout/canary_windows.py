"""Count in windows what became of comparable requests to two archives.

Both groups are drawn by a hash of the request's id and are equally large. So where the new archive is as good as the old one
the two could change places, whatever disturbs the machine, and however errors come in bursts that are shorter than a window:
that is all that the verdict (slotwise.frontend.rollout.verdict) relies on.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

LEVELS = (0.5, 0.9, 0.99)  # of the answers' times
SLOWER = 1.1  # an archive that is slower by less is not worth going back for
RECENT_TIMES, LEAST_TIMES = 2000, 100
WINDOWS = 600  # kept

Which = Literal["old", "new"]


@dataclass
class Side:
    """What became of the requests that one archive had in one window. refused: for want of a place. seconds: of the answered.

    slow: how many took longer than each of the window's limits.
    """

    requests: int = 0
    errors: int = 0
    refused: int = 0
    seconds: list[float] = field(default_factory=list)
    slow: list[int] = field(default_factory=lambda: [0] * len(LEVELS))

    def shown(self) -> dict[str, Any]:
        """Its numbers; `ms` at each of LEVELS, 0 where nothing was answered."""
        times = [round(1000 * seconds, 3) for seconds in quantiles(self.seconds)]
        return {
            "requests": self.requests,
            "errors": self.errors,
            "refused": self.refused,
            "slow": self.slow,
            "ms": times,
        }


class Comparison:
    """The windows of one roll-out.

    What is slow in a window is decided before it begins: longer than each of LEVELS of the old archive's recent times, with
    the tolerance. The old one's times count as if they were longer by the tolerance.
    """

    def __init__(self, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.window_s, self._clock = window_s, clock
        self.id = secrets.token_hex(8)  # no other one's: two gateways may be open in one process
        self.windows: list[dict[str, Any]] = []
        self._count = 0
        self._recent: deque[float] = deque(maxlen=RECENT_TIMES)
        self._start()

    def answered(self, which: Which, seconds: float, timed: bool) -> None:
        """A request was answered. timed: whether both archives have the same load, so that times can be compared."""
        side = self._sides[which]
        side.requests += 1
        side.seconds.append(seconds)
        if timed and self._limits:
            with_tolerance = seconds * (SLOWER if which == "old" else 1.0)
            for level, limit in enumerate(self._limits):
                side.slow[level] += with_tolerance > limit

    def failed(self, which: Which) -> None:
        """A request ended with 5xx."""
        self._sides[which].requests += 1
        self._sides[which].errors += 1

    def refused(self, which: Which) -> None:
        """A request got no place: 429, or a queue was full or too long."""
        self._sides[which].requests += 1
        self._sides[which].refused += 1

    def turn(self, refusals: bool) -> None:
        """Close the window that is over. refusals: whether those of both can be compared."""
        if self._clock() - self._since < self.window_s:
            return
        if any(side.requests for side in self._sides.values()):
            self._count += 1
            sides: dict[str, Any] = {which: side.shown() for which, side in self._sides.items()}
            self.windows.append({"number": self._count, "refusals": refusals, **sides})
            del self.windows[:-WINDOWS]
            self._recent.extend(SLOWER * seconds for seconds in self._sides["old"].seconds)
        self._start()

    def restart(self) -> None:
        """Drop the window that is open: the share changes."""
        self._start()

    def _start(self) -> None:
        self._sides: dict[Which, Side] = {"old": Side(), "new": Side()}
        self._limits = quantiles(self._recent) if len(self._recent) >= LEAST_TIMES else ()
        self._since = self._clock()


def quantiles(values: list[float] | deque[float]) -> tuple[float, ...]:
    """The values at each of LEVELS; zeros where there are none."""
    ranked = sorted(values)
    return tuple(ranked[min(len(ranked) - 1, int(level * len(ranked)))] if ranked else 0.0 for level in LEVELS)
