"""What is meant to upset a host that sets itself: bodies that lie, poison, and a machine that has suddenly half its cores.

Clients ask at a steady rate for answers that are checksums of what they sent. Each adversary comes for some seconds, and then
is gone: what was lost or wrong, how often the number of workers changed, and when the answers came within the target again.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import statistics
import time
import zlib
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measuring.disasters import busy_cores
from benchmarks.measuring.priced import BATCH_S
from benchmarks.measuring.servers import built_handler, server
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench.http_connection import Connection, Target, run
from slotwise.bench.load import percentile
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.deploy.deploy import deploy, registration
from slotwise.profiles.profile import load_profile
from slotwise.server.record import ServerRecord
from slotwise.worker.environment.cores import available_cores

HANDLER = "priced"
TARGET_MS = 100.0
BATCH_SIZE, ROW_MS = 8, 4
SHARE = 0.5  # of all cores is what is asked, in full batches
RATE = SHARE * available_cores() * BATCH_SIZE / (BATCH_S + BATCH_SIZE * ROW_MS / 1000)
CLIENTS = 32 * available_cores()  # who ask so often together, each with one request at a time
SMALL, HUGE = 100, 600_000  # bytes
LIE_MS, ONE_IN = 40, 8  # one body in so many costs so much, and looks like the others
WARM_UP_S = 15.0  # until there are as many workers as are needed
KEPT_S = 5.0  # it is back where 99% of the answers that come in so many seconds are within the target
PATIENCE_S = 60.0
ANSWER_S = 10.0  # who has waited so long for an answer has lost it
SETTINGS = {
    "batch_size": str(BATCH_SIZE),
    "threads": "1",
    "linger": "auto",
    "latency_p99_ms": f"{TARGET_MS:g}",
    "workers_by_load": "auto",
    "max_workers": str(max(2, available_cores())),
}


@dataclass(frozen=True)
class Sent:
    """A request as it is sent, and the answer that it is to get; None: it is poisoned, and gets an error."""

    request: bytes
    answer: int | None


@dataclass(frozen=True)
class Judged:
    """When an answer came, after how long, and what was in it: right, wrong, lost (none, or an error), poisoned."""

    at: float
    took_s: float
    kind: str

    @property
    def due(self) -> float:
        """When it was to be asked."""
        return self.at - self.took_s

    @property
    def wait_s(self) -> float:
        """How long the client waited for a right answer; for ever where none came."""
        return self.took_s if self.kind == "right" else math.inf


class Bodies:
    """What is sent, by kind."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.small = [self._sent(f"{ROW_MS} ok\n{i}", SMALL) for i in range(64)]
        self.huge = [self._sent(f"{ROW_MS} ok\n{i}", HUGE) for i in range(8)]
        self.lies = [self._sent(f"{LIE_MS} ok\n{i}", SMALL) for i in range(64)]
        self.poison = [self._sent(f"{ROW_MS} fail\n{i}", SMALL, bad=True) for i in range(64)]

    def _sent(self, begin: str, size: int, *, bad: bool = False) -> Sent:
        body = begin.encode().ljust(size, b".")
        return Sent(self.target.request(body, "application/octet-stream"), None if bad else zlib.crc32(body))

    def calm(self, number: int) -> Sent:
        return self.small[number % len(self.small)]

    def tiny_and_huge(self, number: int) -> Sent:
        return self.huge[number % len(self.huge)] if number % 2 else self.calm(number)

    def lying(self, number: int) -> Sent:
        return self.calm(number) if number % ONE_IN else self.lies[number % len(self.lies)]

    def poisoned(self, number: int) -> Sent:
        return self.calm(number) if number % ONE_IN else self.poison[number % len(self.poison)]


class Load:
    """Clients that ask one request at a time, CLIENTS of them RATE times a second together. body(number): what is sent."""

    def __init__(self, target: Target, body: Callable[[int], Sent]) -> None:
        self.target, self.body = target, body
        self.judged: list[Judged] = []
        self._numbers = itertools.count()
        self._under_way = set[int]()

    @contextmanager
    def running(self) -> Iterator[None]:
        """They ask meanwhile, in this event loop."""
        clients = [asyncio.ensure_future(self._client(i / RATE)) for i in range(CLIENTS)]
        try:
            yield
        finally:
            for one in clients:
                one.cancel()

    async def settled(self) -> None:
        """Wait until all that are under way now are judged."""
        now = set(self._under_way)
        while now & self._under_way:
            await asyncio.sleep(0.01)

    async def _client(self, first_s: float) -> None:
        connection, due = Connection(self.target), time.monotonic() + first_s
        try:
            while True:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                number = next(self._numbers)
                self._under_way.add(number)
                await self._ask(connection, self.body(number), due)
                self._under_way.remove(number)
                due += CLIENTS / RATE  # what is missed meanwhile is asked late, and counts as late
        finally:
            connection.close()

    async def _ask(self, connection: Connection, sent: Sent, due: float) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                reply = await connection.ask(sent.request)
            failed = "poisoned" if sent.answer is None else "lost"
            kind = failed if reply.status != 200 else "right" if reply.body.strip() == str(sent.answer).encode() else "wrong"
        except (OSError, ValueError) as error:
            say(f"lost: {error!r}")
            kind = "lost"
        now = time.monotonic()
        self.judged.append(Judged(now, now - due, kind))


@dataclass(frozen=True)
class Adversary:
    """body: what is sent meanwhile, of Bodies. trouble(record): what happens to the machine meanwhile."""

    name: str
    body: str = "calm"
    trouble: Callable[[ServerRecord], AbstractContextManager[Any]] = lambda record: nullcontext()


@contextmanager
def half_of_the_cores(record: ServerRecord) -> Iterator[None]:
    """The server and its workers, those to come as well, have half of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    _pin(record, cores[: max(1, len(cores) // 2)])
    try:
        yield
    finally:
        _pin(record, cores)


def _pin(record: ServerRecord, cores: Sequence[int]) -> None:
    first = psutil.Process(record.pid)
    for process in (first, *first.children(recursive=True)):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, cores)


ADVERSARIES = (
    Adversary("tiny and huge bodies, in turn", "tiny_and_huge"),
    Adversary(f"one body in {ONE_IN} costs {LIE_MS // ROW_MS} times as much", "lying"),
    Adversary(f"one body in {ONE_IN} fails its batch", "poisoned"),
    Adversary("the server has half of the cores", trouble=half_of_the_cores),
    Adversary("another program on every core", trouble=lambda record: busy_cores()),
)


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Every round starts a server, and has one adversary come after the other."""
    model = built_handler(HANDLER, work)
    rounds = []
    for turn in range(options.rounds):
        with server(work, "slotwise", **SETTINGS) as record:
            rounds.append(run(_round(options, record, model)))
        say(f"round {turn + 1}: {rounds[-1]}")
    plan = {"clients": CLIENTS, "rate": round(RATE, 1), "seconds": options.seconds, "settings": SETTINGS}
    return {"plan": plan, "rows": [_row([one[i] for one in rounds]) for i in range(len(ADVERSARIES))]}


async def _round(options: Namespace, record: ServerRecord, info: ArchiveInfo) -> list[dict[str, Any]]:
    with ManagementClient(record) as client:
        deploy(client, info, registration(info, load_profile("cpu", SETTINGS, environ={}), {}))
        target = Target.of(record, info.name)
        bodies = Bodies(target)
        load, found = Load(target, bodies.calm), []
        with load.running():
            await asyncio.sleep(WARM_UP_S)
            for adversary in ADVERSARIES:
                before = await asyncio.to_thread(_changes, client, info.name)
                row = await _under(adversary, load, bodies, options.seconds, record)
                found.append({**row, "changes": await asyncio.to_thread(_changes, client, info.name) - before})
                say(f"{adversary.name}: {found[-1]}")
    return found


def _changes(client: ManagementClient, model: str) -> int:
    """How often the number of its workers was changed so far."""
    return len((client.describe(model).batch_cost or {})["workers"]["changes"])


async def _under(adversary: Adversary, load: Load, bodies: Bodies, seconds: float, record: ServerRecord) -> dict[str, Any]:
    """Calm, the adversary, and calm again until the target is kept."""
    load.judged.clear()
    await asyncio.sleep(seconds)
    came = time.monotonic()
    load.body = getattr(bodies, adversary.body)
    with adversary.trouble(record):
        await asyncio.sleep(seconds)
    load.body, ended = bodies.calm, time.monotonic()
    while time.monotonic() < ended + KEPT_S or (
        back_s(load.judged, ended, time.monotonic()) is None and time.monotonic() < ended + PATIENCE_S
    ):
        await asyncio.sleep(0.2)
    await load.settled()
    kinds = Counter(one.kind for one in load.judged)
    return {
        "name": adversary.name,
        **{kind: kinds[kind] for kind in ("right", "lost", "wrong", "poisoned")},
        "p99_before_ms": _p99_ms(load.judged, 0, came),
        "p99_meanwhile_ms": _p99_ms(load.judged, came, ended),
        "back_s": back_s(load.judged, ended, time.monotonic()),
    }


def back_s(judged: Sequence[Judged], ended: float, now: float) -> float | None:
    """How long after the end the target was kept for KEPT_S; None: not yet."""
    after = [one for one in judged if one.at > ended and one.kind != "poisoned"]
    late = [one.at for one in after if one.wait_s > TARGET_MS / 1000]
    for at in (ended, *late):
        kept = [one for one in after if at < one.at <= at + KEPT_S]
        if at + KEPT_S <= now and kept and sum(one.wait_s > TARGET_MS / 1000 for one in kept) <= 0.01 * len(kept):
            return round(at - ended, 3)
    return None


def _p99_ms(judged: Sequence[Judged], since: float, until: float) -> float:
    """Of those due in this time, but for the poisoned; infinite where more than one in a hundred had no right answer."""
    took = sorted(one.wait_s for one in judged if since < one.due <= until and one.kind != "poisoned")
    return round(1000 * percentile(took or [math.inf], 99), 1)


def _row(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all rounds lost, the medians of the p99s, and the longest until the target was kept."""
    row: dict[str, Any] = {"name": rounds[0]["name"]}
    row |= {kind: sum(one[kind] for one in rounds) for kind in ("right", "lost", "wrong", "poisoned", "changes")}
    row |= {key: statistics.median(one[key] for one in rounds) for key in ("p99_before_ms", "p99_meanwhile_ms")}
    backs = [one["back_s"] for one in rounds]
    return {**row, "longest_back_s": None if None in backs else max(backs), "rounds": list(rounds)}
