"""How many workers a model is to have for the load that there is, between the fewest and the most that an operator allows.

More    where those that it has are busy nearly all of their time; or half of it, and answers come after the target
Fewer   where so few would be busy for less than half of their time, DOWN looks in a row
Back    where more workers gave no more answers, nor sooner ones: more are not tried again until the load is another one
Shared  of several models each has its share of the cores, and more than that while cores are free

More workers never make batches larger, so the work of a constant load is no less with them: what was busy enough for more is
never idle enough for fewer. A constant load makes the number go one way, and back once at most. Whatever the load does, there
are no more than LIMIT changes an hour, the last RESERVE of them for more workers; and those back from what does not start, and
to a share.
Nothing here waits or knows a clock: `slotwise simulate` asks the same code in virtual time.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from slotwise.backends.local.dispatcher import Dispatcher
from slotwise.backends.local.queue_members import BatchWorker

log = logging.getLogger("slotwise.host")

LOOK_S = 1.0  # between two looks
HIGH, LOW = 0.8, 0.5  # of the workers' time
LATE = 0.01  # of the answers, after the target
UP, DOWN, TRIAL = 3, 30, 6  # looks in a row before there are more, or fewer, or before it is said what more have given
GAIN, SOONER = 1.05, 0.8  # times as many answers, or as many late ones, is worth more workers
ANOTHER = 1.25  # times as many answers are another load
HOUR_S, LIMIT, RESERVE = 3600.0, 12, 4
KEPT = LIMIT  # changes, for a description

Why = Literal["busy", "late", "idle", "useless", "failed", "share"]
WHYS: tuple[Why, ...] = get_args(Why)


@dataclass(frozen=True)
class Load:
    """What a model's workers did since the last look. busy: that share of their time. a_second: answers.

    late: that share of those, after the target. waiting: how many full batches wait for each worker.
    """

    busy: float
    a_second: float = 0.0
    late: float = 0.0
    waiting: float = 0.0


@dataclass(frozen=True)
class WorkersChange:
    """From so many workers to so many, at a time of the clock that it was asked with."""

    at: float
    before: int
    after: int
    why: Why
    words: str


class LoadMeter:
    """Reads a load off a dispatcher's counts, between two looks."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self._last: tuple[float, float, int, int] | None = None

    def read(self, workers: Sequence[BatchWorker], now: float) -> Load | None:
        """The load since the last time; None the first time."""
        one, last = self.dispatcher, self._last
        worked_s = one.worked_s + sum(now - worker.busy_since for worker in workers if worker.busy)
        self._last = now, worked_s, one.ran, one.late
        if last is None or now <= last[0] or not workers:
            return None
        passed_s, ran = now - last[0], one.ran - last[2]
        busy = (worked_s - last[1]) / passed_s / len(workers)
        waiting = len(one.waiting) / one.batch_size / len(workers)
        return Load(min(1.0, max(0.0, busy)), ran / passed_s, (one.late - last[3]) / max(1, ran), waiting)

    def forget(self) -> None:
        """What happens until the next time does not count."""
        self._last = None


class WorkersByLoad:
    """The choices for one model. advise: they are only said. name: the model's, for the log.

    share: so many workers have cores of their own; more only while cores are free. 0: nobody else wants them.
    choice: the last one, in words. counts: of changes, by the reason.
    """

    def __init__(self, least: int, most: int, *, share: int = 0, advise: bool = False, name: str = "") -> None:
        self.least, self.most, self.advise, self.name = least, max(least, most), advise, name
        self.share = share and max(least, share)
        self.changes: deque[WorkersChange] = deque(maxlen=KEPT)
        self.counts: Counter[Why] = Counter()
        self.choice = ""
        self._times: deque[float] = deque()
        self._high: deque[Load] = deque(maxlen=TRIAL)
        self._few: deque[int] = deque(maxlen=DOWN)  # that would do, at the last looks
        self._advised = 0
        self._trial: tuple[int, Load] | None = None  # so many there were before, and what they gave
        self._enough: tuple[int, float] | None = None  # with so many, more gave nothing at so many answers a second

    def choose(self, load: Load, workers: int, now: float, room: Callable[[], int], free_cores: float = 0.0) -> int:
        """How many workers it is to have, of which it has so many that are ready. room(): for how many there is memory.

        free_cores: that nobody is busy on.
        """
        most = min(self.most, max(self.share, workers + round(free_cores))) if self.share else self.most
        few = min(workers, max(self.least, math.floor(load.busy * workers / LOW) + 1))  # busy for less than that, all of it
        if load.busy >= HIGH or (load.late > LATE and load.busy >= LOW):
            self._high.append(load)
        else:
            self._high.clear()
            self._trial = None
        if load.busy < LOW:
            self._enough = None
        if few < workers:
            self._few.append(few)
        else:
            self._few.clear()
        if not self._high and not self._few:
            self._advised = 0
        if self._trial:
            return self._after_trial(*self._trial, workers, now) if len(self._high) == TRIAL else workers
        if len(self._high) >= UP and workers < most:
            return self._more(load, workers, most, now, room)
        if len(self._few) == DOWN:
            few = max(self._few)
            return self._change(workers, few, "idle", now, f"{few} would be busy less than {LOW:.0%} of their time")
        return workers

    def wants_its_share(self, workers: int) -> bool:
        """Whether it has no more than its share, and would be quicker if others had no more than theirs."""
        return workers <= self.share and len(self._high) >= UP

    def to_its_share(self, workers: int, now: float) -> int:
        """Another model wants its own cores: how many it is to have of so many, which are more than its share."""
        self._trial = None
        return self._change(workers, self.share, "share", now, "another model wants its share of the cores", must=True)

    def unsettled(self) -> None:
        """Workers start, end or fail: what was seen until now says nothing of those that will be there."""
        self._high.clear()
        self._few.clear()

    def failed(self, workers: int, words: str, now: float) -> int:
        """Of so many, those that were to come do not start: it is to have as many as before."""
        if self._trial is None:
            return workers
        (before, had), self._trial = self._trial, None
        self._enough = before, had.a_second
        return self._change(workers, before, "failed", now, words, must=True)

    def limit(self, least: int, most: int) -> None:
        """An operator says how many there may be."""
        self.least, self.most, self.share = least, max(least, most), 0
        self._trial = self._enough = None
        self.unsettled()

    def _more(self, load: Load, workers: int, most: int, now: float, room: Callable[[], int]) -> int:
        seen = self._mean()
        if self._enough and workers >= self._enough[0] and seen.a_second < ANOTHER * self._enough[1]:
            return workers
        wanted = min(most, 2 * workers if load.waiting >= 1 else workers + 1)
        fits = wanted if self.advise else min(wanted, room())
        if fits <= workers:
            self._say(f"{workers}: there is no memory for one more")
            return workers
        words = f"{workers} are busy {seen.busy:.0%} of their time"
        if seen.busy >= HIGH:
            return self._change(workers, fits, "busy", now, words, seen)
        words += f", and {seen.late:.0%} of the answers come after the target"
        return self._change(workers, fits, "late", now, words, seen)

    def _after_trial(self, before: int, had: Load, workers: int, now: float) -> int:
        """What more workers have given: they stay, or go again."""
        seen, self._trial = self._mean(), None
        sooner = had.late > LATE and seen.late < SOONER * had.late
        if seen.a_second >= GAIN * had.a_second or sooner:
            return workers
        self._enough = before, had.a_second
        words = f"they gave {seen.a_second:.0f} answers a second, {before} gave {had.a_second:.0f}"
        return self._change(workers, max(before, self.least), "useless", now, words)

    def _mean(self) -> Load:
        count = len(self._high)
        answers = sum(one.a_second for one in self._high)
        late = sum(one.late * one.a_second for one in self._high) / answers if answers else 0.0
        return Load(sum(one.busy for one in self._high) / count, answers / count, late)

    def _change(
        self, workers: int, wanted: int, why: Why, now: float, words: str, had: Load | None = None, *, must: bool = False
    ) -> int:
        """Change the number, where the limit of changes allows it. had: what those that are there give, if more are tried."""
        while self._times and now - self._times[0] >= HOUR_S:
            self._times.popleft()
        if wanted in (workers, self._advised):
            return workers
        if not must and len(self._times) >= LIMIT - (RESERVE if why == "idle" else 0):
            self._say(f"{workers}, not {wanted}: there were {len(self._times)} changes within an hour")
            return workers
        self._times.append(now)
        self.counts[why] += 1
        self.changes.append(WorkersChange(now, workers, wanted, why, words))
        self._say(f"{'it would choose ' if self.advise else ''}{wanted}, not {workers}: {words}")
        self.unsettled()
        if self.advise:
            self._advised = wanted
            return workers
        self._trial = (workers, had) if had else None
        return wanted

    def _say(self, choice: str) -> None:
        """Log a choice, once."""
        if choice != self.choice:
            self.choice = choice
            log.info("%s: workers: %s", self.name, choice)

    def described(self, now: float) -> dict[str, Any]:
        """The limits, the last choice, and the last changes with their reasons, for a description."""
        changes = [
            {"ago_s": round(now - one.at, 1), "from": one.before, "to": one.after, "why": one.why, "words": one.words}
            for one in self.changes
        ]
        return {"least": self.least, "most": self.most, "choice": self.choice, "changes": changes}
