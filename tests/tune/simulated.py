"""A bench that measures nothing: what it says is calculated."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from slotwise.bench.load import LoadResult
from slotwise.errors import SlotwiseError
from slotwise.tune.simulate import ServiceTimes, simulate
from slotwise.tune.space import TrialSetting

DEFAULT, PROFILE = TrialSetting(1, 100, 1, 1), TrialSetting(8, 5, 1, 2)


class Simulated:
    """A bench on arithmetic; keeps what it was asked. noise: the standard deviation of a whole round, as a share of it."""

    def __init__(
        self,
        service: ServiceTimes,
        broken: Sequence[TrialSetting] = (),
        noise: float = 0.0,
        each_own: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.service, self.broken = service, broken
        self.asked, self.held = list[TrialSetting](), list[TrialSetting]()
        self.noise, self.each_own, self.draw = noise, each_own, random.Random(seed)
        self.turn, self.disturbed = set[TrialSetting](), 1.0

    def measure(self, setting: TrialSetting, clients: int, seconds: float) -> LoadResult:
        self.asked.append(setting)
        if setting in self.broken:
            raise SlotwiseError("does not fit into memory")
        if not self.held or setting in self.turn:  # a new round: the machine is as slow as it is now
            self.turn, self.disturbed = set(), math.exp(self.draw.gauss(0, self.noise))
        self.turn.add(setting)
        result = simulate(self.service, setting, clients, 300, seed=len(self.asked))
        slower = self.disturbed * math.exp(self.draw.gauss(0, self.each_own))
        return replace(result, req_s=result.req_s / slower, p50_ms=result.p50_ms * slower, p99_ms=result.p99_ms * slower)

    def keep_ready(self, settings: Sequence[TrialSetting]) -> None:
        self.held = list(settings)
