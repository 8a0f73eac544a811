"""Which of those that wait go together, and when; who is refused because it would be late, or because there is no room.

linger "free"     whoever waits goes when a worker is free; it waits a moment for as many as it has just answered
       "exact"    a batch that is not full waits max_batch_delay, as on TorchServe
       "auto"     the batch that has most of those that wait answered within the target, of no more than a worker's even
                  part; it waits only while that has paid; who is too late goes once nobody else waits, or after PATIENCE others
       "advise"   as "free"; what "auto" would have chosen is counted and logged
Nothing here waits or knows a clock: `slotwise simulate` asks the same code in virtual time.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect, bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from slotwise.backends.exchange import BackendRequest, Overloaded
from slotwise.backends.local.batch_cost import DOUBT, BatchCost
from slotwise.backends.local.queue_members import BatchWorker, WaitingRequest, even_share
from slotwise.backends.local.waiting_line import WaitingLine

log = logging.getLogger("slotwise.host")

HOLD, LEAST_HOLD_S = 0.05, 0.001  # of what a batch takes; an event loop's timer counts milliseconds
LEAST_SHARE, TRY_AGAIN = 1 / 16, 64  # of a hold, which is not worth it then; so many batches later it is tried again
RETURN_WEIGHT = BUSY_WEIGHT = 0.1  # of the last time among all
LONGER = 1.1  # than its own part alone takes a batch with requests of a crowd
AHEAD, SAY_S = 4, 10.0  # batches that are looked at; between two lines of the log at least
TOO_LATE = "by what batches have cost so far, the deadline passes before a worker could answer: it was not sent to one"

Linger = Literal["free", "exact", "auto", "advise"]
Why = Literal["all", "target", "late"]
Wait = Literal["pays", "enough", "nobody", "short", "limit"]
WAITS: dict[Wait, str] = {
    "pays": "a worker waits for those that it has answered to ask again: so more are answered a second",
    "enough": "no worker waits: with those that are there already more are answered a second",
    "nobody": "no worker waits: too few came when one did",
    "short": "no worker waits: a batch costs less than a timer",
    "limit": "no worker waits: max_batch_delay forbids it",
}


class Dispatcher:
    """The choices of one model's queue. target_s: within which "auto" wants answers; 0: none. name: the model's, for the log.

    waiting, cost: the queue's. refused, chosen: how many requests it refused, and batches "auto" chose, by the reason. waits:
    how often it let a worker wait after a batch, or not, by the reason. choice: of a batch, the last one, in words. worked_s:
    what all batches have taken that are over. ran, late: how many requests they had, and of these after the target.
    """

    def __init__(
        self,
        batch_size: int,
        max_batch_delay_s: float,
        job_queue_size: int,
        linger: Linger = "free",
        target_s: float = 0.0,
        name: str = "",
    ) -> None:
        self.batch_size, self.max_batch_delay_s, self.job_queue_size = batch_size, max_batch_delay_s, job_queue_size
        self.linger, self.target_s, self.name = linger, target_s, name
        self.waiting, self.cost = WaitingLine(), BatchCost()
        self.refused: Counter[Literal["full", "late"]] = Counter()
        self.chosen: Counter[Why] = Counter()
        self.waits: Counter[Wait] = Counter()
        self.worked_s, self.ran, self.late = 0.0, 0, 0
        self._busy = 0.0  # of the workers' time, of late
        self.choice, self._why, self._said_at = "", "", -math.inf
        self._wait: tuple[Wait, float] | None = None  # the last one, and for how long
        self._logged_wait, self._wait_logged_at = "", -math.inf
        self._hold_share, self._no_hold, self._return_s = 1.0, 0, 0.0  # _return_s: until those came that were waited for

    # Who is refused.

    def make_room(self, request: BackendRequest, workers: int) -> None:
        """Refuse one of a full queue, of whoever has most for its share. Raises Refused where that is who asks."""
        if len(self.waiting) < self.job_queue_size:
            return
        self.waiting.drop_closed()
        if len(self.waiting) < self.job_queue_size:
            return
        self.refused["full"] += 1
        full = f"{self.job_queue_size} requests wait for this model already"
        retry_after_s = max(1, math.ceil(self.wait_s(len(self.waiting), workers)))
        one = self.waiting.give_way_to(request)
        if one is None:
            raise Overloaded(503, full, retry_after_s)
        one.refuse(503, f"{full}, and this one gave way to a sender with fewer", retry_after_s, Overloaded)

    def wait_s(self, count: int, workers: int) -> float:
        """Seconds until so many that wait have been answered; 0 where nobody knows."""
        if not self.cost.known or not workers:
            return 0.0
        return math.ceil(count / self.batch_size / workers) * self.cost.of(min(count, self.batch_size))

    def refuse_if_late(self, request: BackendRequest, now: float, workers: Sequence[BatchWorker]) -> None:
        """Raise Refused (504) where the batches before it leave it no time, even if they cost the least that they may.

        Never where a worker is free: so what was learned wrong is learned again.
        """
        for worker in workers:
            if not worker.batch:
                return
        if not workers:
            return
        left_s, least_s = request.deadline - now, self.cost.least(1)
        if not least_s or left_s > 2 * self.wait_s(len(self.waiting) + 2 * self.batch_size, len(workers)):
            return
        running_s = min(worker.busy_since + self.cost.least(len(worker.batch)) for worker in workers) - now
        batches = self.waiting.ahead_of(request) // self.batch_size // len(workers)
        if self.linger == "auto" and self._within(self.target_s / 2):
            batches = 0  # those before it may be set aside
        if left_s < max(0.0, running_s) + batches * self.cost.least(self.batch_size) + least_s:
            self.refused["late"] += 1
            raise Overloaded(504, TOO_LATE)

    # Who goes.

    def over(self, worker: BatchWorker, now: float) -> None:
        """A worker's batch is over: what it cost is learned, and it may wait a moment: whoever asks again does so now.

        It waits for a small part of what a batch takes, or "auto" for less than what another batch costs: so little can be lost
        by it. A short batch is not worth a timer.
        """
        took_s, size = now - worker.busy_since, len(worker.batch)
        self.cost.learn(size, took_s)
        self.worked_s += took_s
        self.ran += size
        if self.target_s:
            self.late += sum(now - one.came_at > self.target_s for one in worker.batch)
        if worker.over_at and now > worker.over_at:
            self._busy += BUSY_WEIGHT * (took_s / (now - worker.over_at) - self._busy)
        worker.over_at, worker.found, worker.expects = now, len(self.waiting), size
        hold_s = HOLD * took_s
        if self.linger == "auto" and self.cost.known:
            worker.expects = min(self.batch_size, worker.found + size)
            hold_s = self._may_wait(worker.found, worker.expects, now)
        hold_s = min(self.max_batch_delay_s, hold_s)
        worker.hold_until = now + hold_s if hold_s >= LEAST_HOLD_S else 0.0

    def _may_wait(self, found: int, expected: int, now: float) -> float:
        """How long a worker may wait for so many; counted, and another reason than the last logged, every SAY_S at most."""
        wait, hold_s = self._wait = self._worth(found, expected)
        self.waits[wait] += 1
        if wait != self._logged_wait and now - self._wait_logged_at >= SAY_S:
            self._logged_wait, self._wait_logged_at = wait, now
            log.info("%s: %s", self.name, self._wait_words())
        return hold_s

    def _worth(self, found: int, expected: int) -> tuple[Wait, float]:
        """Why a worker may wait for so many, or may not, and how long; 0 where more are answered a second if it does not."""
        cost = self.cost
        if self.max_batch_delay_s < LEAST_HOLD_S:
            return "limit", 0.0
        if self._hold_share < LEAST_SHARE:
            self._no_hold += 1
            if self._no_hold < TRY_AGAIN:
                return "nobody", 0.0
            self._hold_share, self._no_hold = 4 * LEAST_SHARE, 0
        if found and expected / (self._return_s + cost.of(expected)) <= found / cost.of(found):
            return "enough", 0.0
        if cost.each_s <= LEAST_HOLD_S / 2:
            return "short", 0.0
        return "pays", min(self.max_batch_delay_s, max(LEAST_HOLD_S, self._hold_share * cost.each_s))

    def _wait_words(self) -> str:
        """The last choice of waiting; "" where there was none."""
        if self._wait is None:
            return ""
        wait, hold_s = self._wait
        return WAITS[wait] + (f"; for {hold_s * 1000:.3g} ms at most" if hold_s else "")

    def form(self, worker: BatchWorker, now: float, workers: Sequence[BatchWorker]) -> tuple[list[WaitingRequest], float]:
        """The batch that a free worker gets now. Where that is empty: until when it waits; infinity: nobody is there."""
        first = self.waiting.first()
        if first is None:
            return [], math.inf
        exact = self.linger == "exact"
        enough = self.batch_size if exact else worker.expects
        until = first.came_at + self.max_batch_delay_s if exact else worker.hold_until
        if self.linger == "auto" and self.target_s:
            until = min(until, first.came_at + self.target_s - self._most_s(enough))
        if len(self.waiting) < enough and until > now:
            return [], until
        if worker.hold_until:
            self._held(worker, now)
        size = self._size(first, now, len(workers)) if self.linger in ("auto", "advise") else self.batch_size
        if self.linger == "auto" and not self.waiting.aside:  # workers that are as fast end as soon, and none has all
            size = min(size, even_share(len(self.waiting), workers))
        return self._take(self.waiting.first(), size, now), math.inf

    def _take(self, one: WaitingRequest | None, size: int, now: float) -> list[WaitingRequest]:
        """So many, whose turn it is; but who asked to be alone is, and who would be late is refused.

        Beside those of senders that have few waiting go only so many of senders that have many, that it takes little longer.
        """
        batch: list[WaitingRequest] = []
        waiting, cost, few, many = self.waiting, self.cost, 0, self.batch_size // 2
        most = now + cost.of(size)
        crowds = waiting.crowds(many) if len(waiting) > many and cost.known else None
        while one is not None:
            request = one.request
            if batch and (request.alone or batch[0].request.alone):
                break
            crowded = crowds and request.sender in crowds
            if few and crowded and cost.of(len(batch) + 1) > LONGER * cost.of(few):
                break
            late = request.deadline < most and request.deadline < now + cost.least(len(batch) + 1)
            if late and (batch or len(waiting) > 1):  # the last one goes: what was learned wrong is learned again
                self.refused["late"] += 1
                one.refuse(504, TOO_LATE, kind=Overloaded)
            else:
                batch.append(waiting.take(one))
                few += bool(crowds) and not crowded
            one = waiting.first() if len(batch) < size else None
        return batch

    def _held(self, worker: BatchWorker, now: float) -> None:
        """A worker has waited: next time it waits longer where half of whom it expected came, else less."""
        worker.hold_until = 0.0
        if 2 * (len(self.waiting) - worker.found) >= worker.expects - worker.found:
            self._hold_share = min(1.0, 2 * self._hold_share)
            self._return_s += RETURN_WEIGHT * (now - worker.over_at - self._return_s)
        else:
            self._hold_share /= 2

    def _most_s(self, n: int) -> float:
        return self.cost.of(n) + DOUBT * self.cost.spread_s

    def _within(self, seconds: float) -> int:
        """The largest batch that takes so long at most; 0: none does."""
        return bisect(range(1, self.batch_size + 1), seconds, key=self._most_s)

    def _size(self, first: WaitingRequest, now: float, workers: int) -> int:
        """How many go together: as many as may, where the first one is answered within the target even so.

        Else "auto" sets aside whom a batch of half of the target answers too late. While somebody is, no batch takes longer
        than that, so that whoever comes meanwhile can be in time. Where even one alone takes longer, nobody is set aside.
        """
        waiting, target_s = self.waiting, self.target_s
        if not target_s or not self.cost.known:
            return self.batch_size
        all_of_them = min(self.batch_size, len(waiting))
        if not waiting.aside and now + self._most_s(all_of_them) <= first.came_at + target_s:
            self._say("all", all_of_them, now)
            return self.batch_size
        dues = sorted(one.came_at + target_s for one in waiting if not one.aside and one.open)
        if half := self._within(target_s / 2):
            soonest = now + self._most_s(min(half, len(dues)))
            dues = dues[bisect_left(dues, soonest) :]
            if self.linger == "auto":
                waiting.set_aside(soonest - target_s)
        if not dues:
            self._say("late", min(half or self.batch_size, all_of_them), now)
            return half if half and self.linger == "auto" else self.batch_size
        due = dues[: AHEAD * self.batch_size * workers : workers]  # what is this worker's part of them
        all_of_them = min(len(dues), half if half and waiting.aside else self.batch_size)
        sizes = [1 << i for i in range(all_of_them.bit_length()) if 1 << i < all_of_them] + [all_of_them]
        in_time = {size: self._in_time(due, size, now) for size in sizes}
        # Workers that take longer for these answer fewer of those that come, as far as they have no time to spare.
        a_second = self._busy * self.batch_size / self.cost.of(self.batch_size)
        worth = {size: in_time[size] - a_second * len(due) / size * self.cost.each_s for size in sizes}
        best = max(sizes, key=lambda size: (worth[size], size))
        self._say("target" if in_time[best] else "late", best, now)
        if self.linger != "auto":
            return self.batch_size
        return best if best < all_of_them else max(best, self._within(min(target_s / 2, dues[0] - now)))

    def _in_time(self, due: Sequence[float], size: int, now: float) -> int:
        """How many of these are answered when they are due, if all go in batches of this size."""
        count = 0
        for at in range(0, len(due), size):
            part = due[at : at + size]
            now += self._most_s(len(part))
            count += len(part) - bisect_left(part, now)
        return count

    def _say(self, why: Why, size: int, now: float) -> None:
        """Count a choice; one of another kind than the last stands in the log, not more often than every SAY_S."""
        self.chosen[why] += 1
        words = {
            "all": "all that wait are answered within the target",
            "target": "so most of those that still can be are answered within the target",
            "late": "all that wait are late for the target",
        }
        cost = self.cost
        said = f"batches of {size} of {self.batch_size}: {words[why]}, {self.target_s * 1000:g} ms"
        said += f"; one of n takes {cost.each_s * 1000:.3g} + {cost.request_s * 1000:.3g} n ms"
        self.choice = f"{'it would choose ' if self.linger == 'advise' else ''}{said}"
        if why != self._why and now - self._said_at >= SAY_S:
            self._why, self._said_at = why, now
            log.info("%s: %s", self.name, self.choice)

    def described(self) -> dict[str, Any]:
        """What is known of its costs, the last choices, and how many wait aside, for a description."""
        choices = {"choice": self.choice, "waiting": self._wait_words(), "aside": self.waiting.aside}
        return {**self.cost.said(), **{key: said for key, said in choices.items() if said}}
