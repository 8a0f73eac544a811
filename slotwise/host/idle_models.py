"""Put models to sleep that nobody asks, or for which there is no memory; whoever is asked again is woken up.

A model that sleeps has no workers. Its requests wait in its queue, as those of a model that still starts. Where memory is
short, the one that was asked longest ago goes first, of those that have nothing to do. Where all are busy, after a moment the
one of them that was asked longest ago goes, once it has answered what its workers have in hand; the others of its requests wait
until it is its turn again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable

from slotwise.backends.local.served_model import ServedModel
from slotwise.host.look_again import look_again
from slotwise.profiles.memory import resident_bytes

log = logging.getLogger("slotwise.host")

LOOK_S = 0.5
STAY_S = 2.0  # at least, once a model is awake, where others want its place
PATIENCE_S = 1.0  # before one that is busy has to go
LATE_S = 5.0  # one that ends takes no longer, unless what it has in hand does

Key = tuple[str, str]  # a name and a version


class IdleModels:
    """served(): every version of every model. budget_bytes: for the workers of all of them together; 0: no limit.

    sizes: what a model's workers took when all of them were ready. waking: who is to be woken up, in order.
    """

    def __init__(self, served: Callable[[], Iterable[ServedModel]], budget_bytes: int = 0) -> None:
        self.served, self.budget_bytes = served, budget_bytes
        self.loop = asyncio.get_running_loop()
        self.sizes: dict[Key, int] = {}
        self._now: dict[Key, int] = {}  # what the workers of those that are awake take, at this look
        self.waking: deque[tuple[ServedModel, float]] = deque()
        self.slept = 0

    async def watch(self) -> None:
        """Look again and again."""
        await look_again(self.look, LOOK_S, "idle models")

    def asked(self, served: ServedModel) -> None:
        """A request has come for a model that sleeps."""
        if all(one is not served for one, _ in self.waking):
            self.waking.append((served, self.loop.time()))
            self.loop.call_soon(self.look)

    def look(self) -> None:
        """Put to sleep, and wake up."""
        now, every = self.loop.time(), list(self.served())
        awake = [one for one in every if one.links or not one.asleep]
        measured = awake if self.budget_bytes else ()
        self._now = {_key(one): sum(resident_bytes(link.pid) for link in one.links) for one in measured}
        for one in every:
            if self.budget_bytes and not one.asleep and one.is_ready:
                self.sizes[_key(one)] = self._now[_key(one)]
            if not one.asleep and one.settings.idle_timeout_s and one.unused_s(now) > one.settings.idle_timeout_s:
                self._sleep(one, "nobody has asked it")
            died_with_some = one.ledger.open and not one.links
            if one.asleep and (len(one.queue.waiting) or died_with_some):
                self.asked(one)
        self.waking = deque((one, since) for one, since in self.waking if one.asleep and any(one is each for each in every))
        while self.waking and self._has_room(*self.waking[0], awake, now):
            one, since = self.waking.popleft()
            log.info("model %s wakes up, after %.1f s", one.id, now - since)
            one.wake()
            awake.append(one)
        if not self.waking and self.budget_bytes and self._taken(awake) > self.budget_bytes:
            self._make_room(awake, now, None)

    def free_bytes(self) -> float:
        """What the workers of all models may still take; infinity: there is no limit."""
        if not self.budget_bytes:
            return math.inf
        return self.budget_bytes - self._taken(one for one in self.served() if one.links or not one.asleep)

    def _taken(self, awake: Iterable[ServedModel]) -> int:
        """What workers take now, or will when those that start are ready."""
        taken = 0
        for one in awake:
            now = self._now.get(_key(one), 0)  # 0: it has just been woken up
            taken += now if one.asleep else max(now, self.sizes.get(_key(one), 0))
        return taken

    def _has_room(self, wanted: ServedModel, since: float, awake: list[ServedModel], now: float) -> bool:
        """Whether a model can be woken up now; where not, room is made, or somebody is on the way out."""
        if not self.budget_bytes or self._taken(awake) + self.sizes.get(_key(wanted), 0) <= self.budget_bytes:
            return True
        others = [one for one in awake if one is not wanted]
        if not others:
            log.warning("model %s needs more than models_memory_mb by itself", wanted.id)
            return True
        leaving = [now - one.asleep_since for one in others if one.asleep]  # these give their memory back
        if not leaving:
            self._make_room(others, now, since)
        elif min(leaving) > LATE_S:  # what they have in hand may last long: one that has nothing to do goes, too
            self._make_room(others, now, None)
        return False

    def _make_room(self, awake: Iterable[ServedModel], now: float, since: float | None) -> None:
        """Put the one to sleep that was asked longest ago. since: when somebody began to wait for its place, if anybody did."""
        settled = [one for one in awake if not one.asleep and (one.is_ready or one.failure)]
        candidates = [one for one in settled if now - one.awake_since > STAY_S]
        idle = [one for one in candidates if not one.ledger.open]
        if not idle and since is not None and now - since > PATIENCE_S:
            idle = candidates
        if idle:
            self._sleep(min(idle, key=lambda one: one.used_at), "another one needs its memory")

    def _sleep(self, served: ServedModel, why: str) -> None:
        log.info("model %s goes to sleep: %s", served.id, why)
        self.slept += 1
        served.sleep()


def _key(served: ServedModel) -> Key:
    return served.settings.name, served.settings.version
