"""Is the new archive worse than the old? A sequential test: it may be asked after every window, for as long as one likes.

In every window the two archives had groups of requests that were drawn by chance and are equally large. D is how many more of
the new archive's group failed (or were slow) than of the old one's. Where the new one is not worse, D is as likely above as
below zero, whatever happened before, or lies lower still. Then, for any bet b > 0,

    E = product over the windows of exp(b D - b^2 D^2 / 2)

is a nonnegative supermartingale that starts at 1 (de la Pena, "A general class of exponential inequalities for martingales and
ratios", Annals of Probability 27, 1999; Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform Chernoff bounds via nonnegative
supermartingales", Probability Surveys 17, 2020), and so is the mean over many bets: the chance that it *ever* reaches 1/a is at
most a (Ville). Errors and times have half of 5% each. A window is one observation however many requests failed in it: a worker
that dies takes its whole batch along, which says no more than one failure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotwise.frontend.rollout.canary_windows import LEVELS

FALSE_ALARMS = 0.05  # at most, over the whole roll-out
ALARM = math.log(2 / FALSE_ALARMS)  # of errors, and of times
BETS = tuple(2.0**-power for power in range(13))  # a window may differ by one request or by thousands
LEAST_REQUESTS = 200  # of each archive in every step
LEAST_WINDOWS = math.ceil(2 * (ALARM + math.log(len(BETS))))  # from fewer nothing could be said, were all of them worse

Window = Mapping[str, Any]


class Evidence:
    """The logarithm of E for one kind of difference; the mean over BETS, and `highest` so far."""

    def __init__(self, kinds: int = 1) -> None:
        """kinds: how many differences are weighed together; E is their mean as well."""
        self._sums = [0.0] * kinds
        self._squares = [0.0] * kinds
        self.highest = 0.0

    def add(self, differences: Sequence[float]) -> None:
        """One window's difference of each kind."""
        logs = []
        for kind, difference in enumerate(differences):
            self._sums[kind] += difference
            self._squares[kind] += difference * difference
            logs += [bet * self._sums[kind] - bet * bet * self._squares[kind] / 2 for bet in BETS]
        largest = max(logs)
        now = largest + math.log(sum(math.exp(log - largest) for log in logs) / len(logs))
        self.highest = max(self.highest, now)

    @property
    def clearest(self) -> int:
        """The kind that differs most."""
        scores = [total / math.sqrt(squares or 1.0) for total, squares in zip(self._sums, self._squares, strict=True)]
        return scores.index(max(scores))


@dataclass(frozen=True)
class Judgement:
    """enough: whether this step has seen enough requests. worse: what is worse, in one sentence; empty where nothing is."""

    enough: bool
    worse: str = ""


class Judge:
    """Weighs the windows of a whole roll-out, each once, in order."""

    def __init__(self) -> None:
        self._errors, self._times = Evidence(), Evidence(len(LEVELS))
        self._windows: list[Window] = []
        self._in_step = {"old": 0, "new": 0}

    def begin_step(self) -> None:
        """From here on the new archive has another share."""
        self._in_step = {"old": 0, "new": 0}

    def add(self, window: Window) -> None:
        """One more window."""
        self._windows.append(window)
        for which in self._in_step:
            self._in_step[which] += window[which]["requests"]
        self._errors.add([failures(window, "new") - failures(window, "old")])
        self._times.add([new - old for old, new in zip(window["old"]["slow"], window["new"]["slow"], strict=True)])

    def judgement(self) -> Judgement:
        """What the windows so far say of the new archive."""
        enough = min(self._in_step.values()) >= LEAST_REQUESTS and len(self._windows) >= LEAST_WINDOWS
        if self._errors.highest >= ALARM:
            return Judgement(enough, self._errors_sentence())
        if self._times.highest >= ALARM:
            return Judgement(enough, self._times_sentence())
        return Judgement(enough)

    def so_far(self) -> str:
        """What of it is not enough yet, as `31 of 200 requests of each`."""
        least = min(self._in_step.values())
        if least < LEAST_REQUESTS:
            return f"{least} of {LEAST_REQUESTS} requests of each"
        return f"{len(self._windows)} of {LEAST_WINDOWS} windows"

    def _errors_sentence(self) -> str:
        new, old = (
            100 * sum(failures(window, which) for window in self._windows) / max(self._total(which), 1)
            for which in ("new", "old")
        )
        return f"{new:.2f}% of its requests fail, {old:.2f}% of the old one's {self._asked()}"

    def _times_sentence(self) -> str:
        level = self._times.clearest
        timed = [window for window in self._windows if window["old"]["ms"][level] and window["new"]["ms"][level]]
        new, old = (statistics.fmean(window[which]["ms"][level] for window in timed) for which in ("new", "old"))
        return f"its p{100 * LEVELS[level]:.0f} is {new:.1f} ms, the old one's {old:.1f} ms {self._asked()}"

    def _total(self, which: str) -> int:
        return sum(int(window[which]["requests"]) for window in self._windows)

    def _asked(self) -> str:
        return f"({self._total('new')} and {self._total('old')} requests)"


def failures(window: Window, which: str) -> int:
    """How many of one side failed: 5xx, and what got no place where the new archive has no more load than the old one."""
    side = window[which]
    return int(side["errors"]) + (int(side["refused"]) if window["refusals"] else 0)


def agreement(shown: Mapping[str, Any]) -> str:
    """What a shadow's answers say, in one sentence."""
    compared, differing = int(shown["compared"]), int(shown["differing"])
    return f"{compared - differing} of {compared} answers are the same"
