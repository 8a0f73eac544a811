"""Run the cases of one part, one after the other: each with its own seed, its own time limit, and a note of how far it got."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType

import psutil

from tests.campaign.tally import Tally

GRACE_S = 5  # after a case's deadline
TICKS = 20
SAVE_S = 10.0
SAMPLES = 32  # of the memory, over all cases
Case = Callable[[int, Random, Tally], None]


@dataclass(frozen=True)
class Part:
    """One part. full: its cases at scale 1. start(folder, scale): gives what tries one case. deadline_s: of one case.

    scaled: whether a smaller scale means fewer cases; least: but so many at least. own_memory: each case checks what it has to.
    """

    name: str
    what: str
    full: int
    start: Callable[[Path, float], AbstractContextManager[Case]]
    deadline_s: float = 60.0
    scaled: bool = True
    least: int = 1
    own_memory: bool = False

    def planned(self, scale: float) -> int:
        """How many cases a run of this scale has."""
        return max(self.least, round(self.full * scale)) if self.scaled else self.full


class HungError(BaseException):
    """A case took longer than its deadline. No Exception: nothing that is tried here may swallow it."""


class Watchdog:
    """Raises HungError in the main thread after so many seconds in which this process ran: one that was stopped is not late."""

    def __init__(self, seconds: float) -> None:
        self.left, self.tick_s = TICKS, seconds / TICKS

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, self.tick_s, self.tick_s)

    def __exit__(self, *of_error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _tick(self, number: int, frame: FrameType | None) -> None:
        self.left -= 1
        if self.left <= 0:
            # Again after a while, where what is tried catches everything; not at once, while this one is being raised.
            signal.setitimer(signal.ITIMER_REAL, GRACE_S, GRACE_S)
            raise HungError


def run_case(part: Part, case: Case, seed: int, i: int, tally: Tally) -> None:
    """Try case i. Whatever it raises is counted, and nothing is raised."""
    try:
        with Watchdog(part.deadline_s + GRACE_S):
            case(i, Random(f"{seed}:{part.name}:{i}"), tally)
    except HungError:
        tally.fail(i, "hangs", f"no end after {part.deadline_s + GRACE_S:.0f} s")
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        tally.fail(i, "unplanned", f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})")


def run_part(part: Part, seed: int, scale: float, tally: Tally, work: Path, limit_s: float, save: Callable[[], None]) -> None:
    """Try the cases that are left, at most for so many seconds. save(): called every SAVE_S seconds and at the end."""
    began, before = time.monotonic(), tally.seconds
    saved = began
    with part.start(work, scale) as case:
        while tally.cases < tally.planned and time.monotonic() - began < limit_s:
            run_case(part, case, seed, tally.cases, tally)
            tally.cases += 1
            if tally.cases * SAMPLES // tally.planned > len(tally.memory_mib):
                tally.memory_mib.append(round(memory_mib(), 1))
            now = time.monotonic()
            if now - saved > SAVE_S:
                saved = now
                tally.seconds = round(before + now - began, 1)
                save()
    tally.seconds = round(before + time.monotonic() - began, 1)
    if not part.own_memory:
        tally.check_memory()
    save()


def memory_mib() -> float:
    """What this process and its children hold."""
    here = psutil.Process()
    total = 0
    for process in [here, *here.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total / 2**20
