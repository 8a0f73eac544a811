"""What processes need while they work: memory, threads, files, sockets, sampled; and whether it only grows."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from tests.campaign.tally import NOISE_MIB, NOISE_SHARE

WHAT = ("memory_mib", "threads", "files", "sockets")
FLOORS = {"memory_mib": float(NOISE_MIB), "threads": 16.0, "files": 32.0, "sockets": 96.0}  # a growth that says nothing
WARM_UP = 1 / 3  # of what was seen of a process
JUDGED_S = 300.0  # after the warm-up: whoever was seen for less is only reported
FEWEST = 8  # samples of a process that say anything
SIGMAS = 3.0
Sample = tuple[float, ...]  # the second, then WHAT


def sample(process: psutil.Process) -> Sample:
    """What a process holds now. Raises psutil.Error or OSError where it is gone."""
    folder = f"/proc/{process.pid}/fd"
    links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder) if os.path.lexists(f"{folder}/{name}")]
    sockets = sum(link.startswith("socket:") for link in links)
    memory = process.memory_info().rss / 2**20
    return time.monotonic(), memory, float(process.num_threads()), float(len(links) - sockets), float(sockets)


@dataclass(frozen=True)
class Slope:
    """How one quantity changed after the warm-up. growth: over all of `seconds`, by the straight line that fits best;

    noise: SIGMAS standard errors of that.
    """

    what: str
    seconds: float
    first: float
    growth: float
    noise: float

    def leaks(self, known: float = 0.0) -> bool:
        """Whether it rose by more than noise, chance and what is known explain, seen for long enough."""
        floor = max(FLOORS[self.what], NOISE_SHARE * self.first)
        return self.seconds >= JUDGED_S and self.growth - self.noise > floor + known


def slope(what: str, samples: list[Sample]) -> Slope:
    """The slope of a process's samples after their first third."""
    warm = samples[round(len(samples) * WARM_UP) :]
    times, values = [one[0] for one in warm], [one[1 + WHAT.index(what)] for one in warm]
    line = statistics.linear_regression(times, values)
    rests = [value - line.slope * at - line.intercept for at, value in zip(times, values, strict=True)]
    spread = statistics.pvariance(times) * len(times)
    error = (sum(rest * rest for rest in rests) / max(1, len(warm) - 2) / spread) ** 0.5
    seconds = times[-1] - times[0]
    return Slope(
        what, seconds, statistics.median(values[: max(1, len(values) // 4)]), line.slope * seconds, SIGMAS * error * seconds
    )


@dataclass
class Watch:
    """Samples of all processes, each with its role; a pid that ended keeps its samples."""

    processes: Callable[[], dict[int, str]]
    every_s: float
    roles: dict[int, str] = field(default_factory=dict)
    samples: dict[int, list[Sample]] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within, samples are taken."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(60)

    def _run(self) -> None:
        while not self._over.wait(self.every_s):
            for pid, role in self.processes().items():
                try:
                    taken = sample(psutil.Process(pid))
                except (psutil.Error, OSError):  # it has just ended
                    continue
                self.roles[pid] = role
                self.samples.setdefault(pid, []).append(taken)

    def slopes(self) -> dict[int, list[Slope]]:
        """Of every process that was seen often enough."""
        seen = {pid: samples for pid, samples in self.samples.items() if len(samples) >= FEWEST}
        return {pid: [slope(what, samples) for what in WHAT] for pid, samples in seen.items()}

    def table(self) -> dict[str, Any]:
        """Of each role the process that was seen the longest: how long, what it held at first, and by how much that grew."""
        found: dict[str, Any] = {}
        for pid, slopes in sorted(self.slopes().items(), key=lambda item: -item[1][0].seconds):
            if self.roles[pid] not in found:
                growth = {one.what: [round(one.growth, 1), round(one.noise, 1)] for one in slopes}
                first = {one.what: round(one.first, 1) for one in slopes}
                found[self.roles[pid]] = {"seconds": round(slopes[0].seconds), "held": first, "growth": growth}
        return found
