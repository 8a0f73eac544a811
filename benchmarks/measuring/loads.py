"""Constant loads on our own host: what it chooses while it serves, beside the best static settings for that very load.

A quick pass tries every setting of a grid with each load. The best three of each load are then measured in turn with the host
that chooses: answers within the target a second, and p99. The client is the same for all of them, and shares their cores.
"""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring.rounds import Cell, Reading, one_round, ratio
from benchmarks.measuring.servers import built, server
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench import load
from slotwise.bench.bodies import examples
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.deploy.deploy import deploy, registration
from slotwise.profiles.profile import load_profile
from slotwise.server.record import ServerRecord

AUTO = "auto"
TARGETS_MS = {"digits": 100.0, "efficientnet": 1000.0}
ENOUGH = 0.97  # of the best static setting's answers
FINALISTS = 3
WARM_UP_S, SETTLE_S = 2.0, 30.0  # before a static setting is measured; until the host has its workers, and what waited is done
OPEN_CLIENTS = 512  # requests that may be under way at a rate


class Static(NamedTuple):
    """A setting that stays as it is."""

    workers: int
    batch_size: int
    delay_ms: float

    def __str__(self) -> str:
        """As a row of a table has it."""
        return f"{self.workers} x batch {self.batch_size}, {self.delay_ms:g} ms"


GRID = [Static(w, b, delay_ms) for w in (1, 2) for b in (1, 4, 8, 16) for delay_ms in ((0, 1, 5) if b > 1 else (0,))]


@dataclass(frozen=True)
class ConstantLoad:
    """So many clients that ask again when they are answered; or, with a share, a rate of that part of what can be answered."""

    name: str
    clients: int
    share: float = 0.0


CLOSED = [ConstantLoad("8 clients", 8), ConstantLoad("64 clients", 64)]
OPEN = [ConstantLoad(f"{share:.0%} of capacity", OPEN_CLIENTS, share) for share in (0.5, 0.8)]


def auto_settings(target_ms: float) -> dict[str, str]:
    """All that a profile can leave to the host, for a target."""
    keys = ("batch_size", "max_batch_delay_ms", "initial_workers", "threads")
    return {**dict.fromkeys(keys, AUTO), "latency_p99_ms": f"{target_ms:g}"}


@contextmanager
def served(record: ServerRecord, info: ArchiveInfo, setting: Static | Mapping[str, str]) -> Iterator[Target]:
    """The model with a static setting, or with changes of the profile that this server was started with, while it lasts."""
    chosen = registration(info, load_profile("cpu", environ={}), {})
    if isinstance(setting, Static):
        chosen |= {
            "batch_size": setting.batch_size,
            "max_batch_delay": setting.delay_ms,
            "initial_workers": setting.workers,
        }
    else:
        chosen = registration(info, load_profile("cpu", setting, environ={}), setting, "slotwise")
    with ManagementClient(record) as client:
        deploy(client, info, chosen)
        try:
            yield Target.of(record, info.name)
        finally:
            client.unregister(info.name, info.version)


class ModelUnderLoads:
    """One model, on a server whose settings stay and on one that chooses. capacity: answers a second that clients got."""

    def __init__(self, info: ArchiveInfo, static: ServerRecord, auto: ServerRecord) -> None:
        self.info, self.static, self.auto = info, static, auto
        self.target_ms, self.capacity, self._answered = TARGETS_MS[info.name], 0.0, list[float]()
        self.bodies = examples(str(info.path))

    def reading(self, target: Target, constant: ConstantLoad, seconds: float, warm_up_s: float) -> Reading:
        """Answers within the target a second, and the waits."""
        plan = LoadPlan(constant.clients, seconds, warm_up_s=warm_up_s)
        if constant.share:
            plan = replace(plan, rate=constant.share * self.capacity)
        found = load.measure(target, self.bodies, plan)
        self._answered.append(found.req_s)
        in_time = sum(ms <= self.target_ms for ms in found.latencies_ms) / max(1, len(found.latencies_ms))
        return Reading(round(found.req_s * in_time, 2), found.p50_ms or None, found.p99_ms or None, found.lost)

    def tried(self, loads: Sequence[ConstantLoad], seconds: float) -> dict[str, dict[Static, Reading]]:
        """Every setting of the grid once with each load."""
        found: dict[str, dict[Static, Reading]] = {one.name: {} for one in loads}
        for setting in GRID:
            with served(self.static, self.info, setting) as target:
                for one in loads:
                    found[one.name][setting] = self.reading(target, one, seconds, WARM_UP_S)
            say(f"{self.info.name}, {setting}: {', '.join(f'{found[one.name][setting].rps:.1f}' for one in loads)}")
        return found

    def measured(self, rounds: int, seconds: float) -> list[dict[str, Any]]:
        """A row a load."""
        tried = self.tried(CLOSED, seconds / 2)
        self.capacity = sorted(self._answered)[-FINALISTS]  # the largest of so many is one that noise has made large
        tried |= self.tried(OPEN, seconds / 2)
        loads = {(f"{self.info.name}, {one.name}", one.clients): one for one in (*CLOSED, *OPEN)}
        finalists = {cell: {str(one): one for one in best(tried[of.name])} for cell, of in loads.items()}
        readings: dict[Cell, dict[str, list[Reading]]] = {
            cell: {n: [] for n in (AUTO, *three)} for cell, three in finalists.items()
        }
        with served(self.auto, self.info, auto_settings(self.target_ms)) as chosen:

            def one(cell: Cell, system: str) -> Reading:
                if system == AUTO:
                    return self.reading(chosen, loads[cell], seconds, SETTLE_S)
                with served(self.static, self.info, finalists[cell][system]) as target:
                    return self.reading(target, loads[cell], seconds, WARM_UP_S)

            for turn in range(rounds):
                systems = {cell: list(found) for cell, found in readings.items()}
                for cell, system, reading in one_round(turn, systems, one, say):
                    readings[cell][system].append(reading)
        return [
            {"model": self.info.name, "load": loads[cell].name, **verdict(found, self.target_ms)}
            for cell, found in readings.items()
        ]


def best(tried: Mapping[Static, Reading]) -> list[Static]:
    """Those with the most answers within the target; of equals, to 2%, those with the shortest waits."""
    most = max(reading.rps for reading in tried.values()) or 1.0

    def order(setting: Static) -> tuple[int, float]:
        return -round(tried[setting].rps / most * 50), tried[setting].p99_ms or math.inf

    return sorted(tried, key=order)[:FINALISTS]


def verdict(readings: Mapping[str, Sequence[Reading]], target_ms: float) -> dict[str, Any]:
    """Medians of each system, and whether the host that chooses gives enough beside the best of the others."""
    systems: dict[str, dict[str, Any]] = {
        name: {
            "in_time_s": statistics.median(one.rps for one in rounds),
            "p99_ms": round(statistics.median(one.p99_ms or math.inf for one in rounds), 2),
            "lost": sum(one.failed for one in rounds),
            "rounds": [one.rps for one in rounds],
        }
        for name, rounds in readings.items()
    }
    others = {name: one for name, one in systems.items() if name != AUTO}
    first = max(others, key=lambda name: (others[name]["in_time_s"], -others[name]["p99_ms"]))
    to_best = ratio(systems[AUTO]["rounds"], others[first]["rounds"])
    kept = systems[AUTO]["p99_ms"] <= target_ms or all(one["p99_ms"] > target_ms for one in others.values())
    return {
        "target_ms": target_ms,
        "best": first,
        "to_best": to_best._asdict() if to_best else None,
        "kept": kept,
        "held": kept and to_best is not None and to_best.median >= ENOUGH,
        "systems": systems,
    }


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Each model after the other."""
    rows: list[dict[str, Any]] = []
    for model, target_ms in TARGETS_MS.items():
        info = built(model, work)
        with server(work, "slotwise") as static, server(work, "slotwise", AUTO, **auto_settings(target_ms)) as auto:
            rows += ModelUnderLoads(info, static, auto).measured(options.rounds, options.seconds)
    return {"seconds": options.seconds, "grid": [str(one) for one in GRID], "enough": ENOUGH, "rows": rows}
