"""A day in some minutes on our own host: what it chooses while it serves, beside settings that stay, and beside the simulator.

Quiet, a ramp, the peak, a burst over what can be served, and quiet again (slotwise.tune.virtual_host.day); after the burst a
second model wakes up that slept until then. Every system gets the same requests at the same times, whether it keeps up or not.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring.adversaries import Judged
from benchmarks.measuring.loads import AUTO, Static, auto_settings, served
from benchmarks.measuring.servers import built, server
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench import load
from slotwise.bench.bodies import RequestBody, examples
from slotwise.bench.http_connection import Connection, Target, run
from slotwise.bench.load_plan import LoadPlan
from slotwise.bench.offline import LinearTime
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.profiles.auto_values import AUTO_BATCH, AUTO_DELAY_MS
from slotwise.server.record import ServerRecord
from slotwise.tune import virtual_host
from slotwise.tune.virtual_host import Arrival
from slotwise.worker.environment.cores import available_cores

MODEL, SECOND = "efficientnet", "digits"
TARGET_MS = 200.0
STATICS = (Static(2, 8, 1), Static(2, 16, 2))  # the best by `slotwise simulate`; one worker has half of the cores
FIRST = Static(2, 8, 1)  # what is asked how many it answers a second
CAPACITY_S, READINGS, CLIENTS = 5.0, 3, 64
WAKES, SLEEPS_AGAIN, SECOND_RATE = 0.7, 0.8, 5.0  # shares of the day; requests a second
IDLE = 0.02  # of the day: so long nobody asks until a model sleeps
UNDER_WAY = 1000  # requests of one model at most, for one address has 1,024 connections; more wait here, and it counts
REFUSED = (429, 503, 504)
TIMES, MOST_CHANGES, APART = 1.3, 12, 0.1  # what is to hold


class Callers:
    """Sends each request when it is due, whether those before it are answered or not."""

    def __init__(self, target: Target, body: RequestBody) -> None:
        self.request = target.request(body.data, body.content_type)
        self.judged: list[Judged] = []
        self._idle: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
        for _ in range(UNDER_WAY):
            self._idle.put_nowait(Connection(target))

    async def send(self, arrivals: Sequence[Arrival], began: float) -> None:
        """All of them, until each is answered."""
        async with asyncio.TaskGroup() as group:
            for one in arrivals:
                due = began + one.at_s
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                group.create_task(self._ask(due))
        while not self._idle.empty():
            self._idle.get_nowait().close()

    async def _ask(self, due: float) -> None:
        connection = await self._idle.get()
        try:
            status = (await connection.ask(self.request)).status
            kind = "answered" if status == 200 else "refused" if status in REFUSED else "lost"
        except OSError as error:
            say(f"lost: {error!r}")
            kind = "lost"
        now = time.monotonic()
        self.judged.append(Judged(now, now - due, kind))
        self._idle.put_nowait(connection)

    def counts(self) -> dict[str, int]:
        """Of the answers, those within the target; and what was no answer."""
        kinds = Counter(one.kind for one in self.judged)
        in_time = sum(one.kind == "answered" and one.took_s <= TARGET_MS / 1000 for one in self.judged)
        return {"asked": len(self.judged), "in_time": in_time, "refused": kinds["refused"], "lost": kinds["lost"]}


@dataclass(frozen=True)
class Learned:
    """What a model's batches cost, as its host has learned it. spread_ms: the standard deviation of that."""

    line: LinearTime
    spread_ms: float
    changes: int  # of the number of its workers; no more than the limit of an hour are known

    @classmethod
    def of(cls, record: ServerRecord, model: str) -> Learned:
        """By its description."""
        with ManagementClient(record) as client:
            cost = client.describe(model).batch_cost or {}
        changes = len(cost.get("workers", {}).get("changes", []))
        return cls(LinearTime(cost["request_ms"], cost["batch_ms"]), cost["spread_ms"], changes)


class Day:
    """The requests of a day. capacity: how many a second clients got answered."""

    def __init__(self, infos: Sequence[ArchiveInfo], seconds: float, capacity: float) -> None:
        self.infos, self.seconds, self.capacity = infos, seconds, capacity
        self.bodies = [examples(str(info.path))[0] for info in infos]

    def arrivals(self, turn: int) -> list[list[Arrival]]:
        """Of both models."""
        count = round((SLEEPS_AGAIN - WAKES) * self.seconds * SECOND_RATE)
        second = [Arrival(WAKES * self.seconds + i / SECOND_RATE) for i in range(count)]
        return [virtual_host.day(self.seconds, self.capacity, turn), second]

    def lived(self, work: Path, setting: Static | None, turn: int) -> dict[str, Any]:
        """The day with a setting that stays; None: with what the host chooses."""
        changes = {"idle_timeout_s": f"{IDLE * self.seconds:g}", **(auto_settings(TARGET_MS) if setting is None else {})}
        with server(work, "slotwise", **changes) as record:
            how = changes if setting is None else setting
            with served(record, self.infos[0], how) as first, served(record, self.infos[1], how) as second:
                callers = [Callers(target, body) for target, body in zip((first, second), self.bodies, strict=True)]
                run(_sent(callers, self.arrivals(turn)))
                learned = Learned.of(record, self.infos[0].name)
        counts, second_counts = (one.counts() for one in callers)
        own = {"name": str(setting or AUTO), **counts, "second": second_counts, "changes": learned.changes}
        costs = {"batch_ms": learned.line.b_ms, "request_ms": learned.line.a_ms, "spread_ms": learned.spread_ms}
        return {**own, "costs": costs, "simulated": self.simulated(setting, turn, learned)}

    def simulated(self, setting: Static | None, turn: int, learned: Learned) -> dict[str, Any]:
        """The same day of the first model in virtual time, with what its batches cost on the real one."""
        cores = available_cores()
        one = virtual_host.VirtualSetting(
            learned.line,
            "auto" if setting is None else "free",
            setting.batch_size if setting else AUTO_BATCH,
            setting.delay_ms if setting else AUTO_DELAY_MS,
            TARGET_MS,
            setting.workers if setting else 1,
            min(1.0, learned.spread_ms / learned.line.at(FIRST.batch_size)),
            0 if setting else cores,
            cores=cores,
        )
        found = virtual_host.serve(one, virtual_host.VirtualLoad(self.seconds, trace=self.arrivals(turn)[0]), turn)
        return {"asked": found.asked, "in_time": found.in_time, "refused": found.refused, "changes": len(found.changes)}


async def _sent(callers: Sequence[Callers], arrivals: Sequence[Sequence[Arrival]]) -> None:
    began = time.monotonic()
    await asyncio.gather(*(one.send(each, began) for one, each in zip(callers, arrivals, strict=True)))


def known(work: Path, infos: Sequence[ArchiveInfo], seconds: float) -> Day:
    """The day for what this machine can answer: the best of some readings, for whatever else runs makes it less."""
    plan, bodies = LoadPlan(CLIENTS, min(CAPACITY_S, seconds), warm_up_s=2.0), examples(str(infos[0].path))
    with server(work, "slotwise") as record, served(record, infos[0], FIRST) as target:
        return Day(infos, seconds, max(load.measure(target, bodies, plan).req_s for _ in range(READINGS)))


def verdict(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is to hold: enough beside the best that stays, nothing lost, few changes, and the simulator says the same."""
    auto = next(row for row in rows if row["name"] == AUTO)
    first = max((row for row in rows if row["name"] != AUTO), key=lambda row: row["in_time"])
    times = round(auto["in_time"] / max(1, first["in_time"]), 3)
    apart = {row["name"]: round(row["simulated"] / max(1, row["in_time"]) - 1, 3) for row in (auto, first)}
    return {
        "best": first["name"],
        "times": times,
        "apart": apart,
        "held": {
            "times": times >= TIMES,
            "lost": not any(row["lost"] for row in rows),
            "changes": auto["changes"] <= MOST_CHANGES,
            "simulated": all(abs(one) <= APART for one in apart.values()),
        },
    }


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Every system lives through the same days, in an order that turns by one each round."""
    infos = [built(name, work) for name in (MODEL, SECOND)]
    day, systems = known(work, infos, options.seconds), [None, *STATICS]
    found: dict[str, list[dict[str, Any]]] = {str(one or AUTO): [] for one in systems}
    for turn in range(options.rounds):
        for setting in [*systems[turn % len(systems) :], *systems[: turn % len(systems)]]:
            one = day.lived(work, setting, turn)
            found[one["name"]].append(one)
            say(f"day {turn + 1}: {found[one['name']][-1]}")
    rows = [_row(days) for days in found.values()]
    plan = {"seconds": day.seconds, "capacity": round(day.capacity, 1), "target_ms": TARGET_MS, "times": TIMES}
    return {"plan": plan, "rows": rows, **verdict(rows)}


def _row(days: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the answers in time, of both models; all that was refused or lost; the most changes."""
    return {
        "name": days[0]["name"],
        "asked": statistics.median(one["asked"] for one in days),
        "in_time": statistics.median(one["in_time"] for one in days),
        "refused": sum(one["refused"] + one["second"]["refused"] for one in days),
        "lost": sum(one["lost"] + one["second"]["lost"] for one in days),
        "changes": max(one["changes"] for one in days),
        "second_in_time": statistics.median(one["second"]["in_time"] for one in days),
        "second_asked": statistics.median(one["second"]["asked"] for one in days),
        "simulated": statistics.median(one["simulated"]["in_time"] for one in days),
        "days": list(days),
    }
