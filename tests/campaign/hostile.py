"""One hostile client beside sixteen that ask well: TorchServe behind the gateway, each attack alone, then all of them at once.

Promised is: no innocent is lost, refused, or answered wrongly; none waits for more than a second beyond the p99 of a quiet
time; the gateway's memory stays below its budget and 100 MB.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import psutil

from benchmarks.measuring.about import ROOT
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.frontend import process as gateway_process
from slotwise.frontend.admission import keys
from slotwise.frontend.admission.limits import derived_budget
from slotwise.frontend.grpc.open_inference_messages import CLASSES
from slotwise.server.lifecycle import ServerRecord, stop
from tests.campaign.cases import Case, Part
from tests.campaign.hostile_attacks import ATTACKS, Aim, Attack, Seen
from tests.campaign.innocents import KINDS, TIMEOUT_S, Innocents
from tests.campaign.own_server import CHOSEN, front_pid, own_home, started
from tests.campaign.tally import Tally
from tests.server.conftest import build_handler

MODELS = ("killers", "wide")
WORKERS = 2
SETTINGS = {"batch_size": 8, "max_batch_delay": 10, "initial_workers": WORKERS, "response_timeout": 60}
QUIET_S, ALONE_S, TOGETHER_S, LEAST_S = 30.0, 15.0, 300.0, 3.0  # at scale 1; at the least
ALLOWED_S, ALLOWED_MB = 1.0, 100.0  # beyond the quiet p99; beyond the budget
SAMPLE_S = 0.05
RECOVERY_S = 30.0
STOP_S = 90.0  # for the attacks to end
TOGETHER = "all of these at once"
Strike = Callable[[threading.Event, Seen], None]  # one attack on this place, until it is told to stop


class Place(Protocol):
    """What is attacked, and how one sees how it is. strikes: the attacks, by name."""

    strikes: dict[str, Strike]

    def open(self) -> None:
        """Start it."""

    def close(self) -> None:
        """Stop it."""

    def ask_well(self, seconds: float) -> Innocents:
        """The innocents, so long."""

    def pid(self) -> int:
        """The process that answers its clients."""

    def died(self) -> bool:
        """Whether another process, or none, is there since it was opened."""


class GatewayPlace:
    """A server, the gateway before it, and everybody's keys."""

    def __init__(self, store: Path, key_file: Path) -> None:
        self.store, self.key_file = store, key_file
        self.innocents = [keys.add(key_file, f"innocent-{i}") for i in range(len(KINDS))]
        self.hostile = keys.add(key_file, "hostile")
        self.record: ServerRecord | None = None
        self.front: gateway_process.GatewayRecord | None = None
        self.strikes = {name: self._strike(attack) for name, attack in ATTACKS.items()}

    def open(self) -> None:
        """Start both."""
        self.record = started(CHOSEN.kind, self.store)
        with ManagementClient(self.record) as client:
            for model in MODELS:
                client.register(f"{model}.mar", **SETTINGS)
                client.wait_ready(model, WORKERS)
        options = ["--port", "0", "--translation-port", "-1", "--grpc-port", "0", "--drain-delay-s", "0"]
        self.front = gateway_process.start_detached("default", [*options, "--keys", str(self.key_file)])

    def close(self) -> None:
        """Stop both."""
        gateway_process.stop()
        if self.record is not None:
            stop(self.record)

    def ask_well(self, seconds: float) -> Innocents:
        """The innocents, so long."""
        assert self.front is not None
        credentials = [("x-api-key", key) for key in self.innocents]
        return asked_well(seconds, url=self.front.url, grpc_address=self.front.grpc, credentials=credentials)

    def pid(self) -> int:
        """See Place."""
        assert self.front is not None
        assert self.record is not None
        return front_pid(self.record, self.front)

    def died(self) -> bool:
        """See Place."""
        before, self.front = self.front, gateway_process.running("default") or self.front
        now = gateway_process.running("default")
        return now is None or before is None or now.pid != before.pid

    def _strike(self, attack: Attack) -> Strike:
        def strike(over: threading.Event, seen: Seen) -> None:
            assert self.front is not None
            parts = urlsplit(self.front.url)
            message = CLASSES["ModelInferRequest"](model_name="killers")
            message.inputs.add(name="x", datatype="BYTES", shape=[64]).contents.bytes_contents.extend([b"1"] * 64)
            address = (str(parts.hostname), int(parts.port or 0))
            data = message.SerializeToString()
            attack(Aim(address, ("x-api-key", self.hostile), grpc=self.front.grpc, message=data), over, seen)

        return strike


def asked_well(seconds: float, **where: object) -> Innocents:
    """The innocents, so long. where: what tests.campaign.innocents.ask is told besides."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaign.innocents"],
        input=json.dumps({**where, "seconds": seconds}),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=seconds + 2 * TIMEOUT_S,
    )
    return Innocents(**json.loads(done.stdout))


def recovered(place: Place) -> bool:
    """Whether innocents are answered again."""
    until = time.monotonic() + RECOVERY_S
    while time.monotonic() < until:
        found = place.ask_well(1.0)
        if found.waits_s and not found.lost:
            return True
    return False


@contextlib.contextmanager
def watched(pid: int) -> Iterator[list[float]]:
    """The most memory that the gateway's process held meanwhile, in MB: the one element of the list, at the end."""
    most, over = [0.0], threading.Event()

    def sample() -> None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            while not over.wait(SAMPLE_S):
                most[0] = max(most[0], process.memory_info().rss / 1e6)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def attacked(place: Place, names: list[str]) -> Iterator[dict[str, Seen]]:
    """Within, the hostile client does all of this; what it was answered."""
    over, seen = threading.Event(), {name: Counter[str]() for name in names}
    threads = [threading.Thread(target=place.strikes[name], args=(over, seen[name]), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join(STOP_S)


def p99(waits_s: list[float]) -> float:
    """Of these; 0 where there are none."""
    ranked = sorted(waits_s)
    return ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))] if ranked else 0.0


def attack(place: Place, i: int, quiet_p99_s: float, seconds: float, tally: Tally) -> None:
    """One attack, or all, beside the innocents."""
    name = [*place.strikes, TOGETHER][i]
    names = list(place.strikes) if name == TOGETHER else [name]
    with watched(place.pid()) as most_mb, attacked(place, names) as seen:
        found = place.ask_well(seconds)
    late = sum(wait_s > quiet_p99_s + ALLOWED_S for wait_s in found.waits_s)
    budget_mb = derived_budget() / 1e6
    tally.measured[name] = {
        **shown(found),
        "late": late,
        "memory_mb": round(most_mb[0], 1),
        "budget_mb": round(budget_mb, 1),
        "answers": {each: dict(count) for each, count in seen.items()},
    }
    count = len(found.waits_s) + found.lost + found.refused + found.wrong
    tally.innocents += count
    tally.requests += count + sum(each.total() for each in seen.values())
    tally.refused += sum(count for each in seen.values() for status, count in each.items() if status.startswith("4"))
    texts = iter(found.failures)
    for kind, times in (("lost", found.lost + found.refused), ("wrong", found.wrong), ("late", late)):
        for _ in range(times):
            tally.fail(i, kind, f"{name}: {'waited too long' if kind == 'late' else next(texts, '')}")
    for _ in range(sum(each["smuggled"] for each in seen.values())):
        tally.fail(i, "wrong", f"{name}: a hidden request was answered")
    if most_mb[0] > budget_mb + ALLOWED_MB:
        tally.fail(i, "leaks", f"{name}: the gateway held {most_mb[0]:.0f} MB, its budget is {budget_mb:.0f}")
    _whole_again(place, i, name, tally)


def _whole_again(place: Place, i: int, name: str, tally: Tally) -> None:
    """What one attack broke must not be seen in the next."""
    if place.died():
        tally.fail(i, "unplanned", f"{name}: the process that answers died")
        tally.restarts += 1
    if not recovered(place):
        tally.fail(i, "hangs", f"{name}: nobody is answered {RECOVERY_S:.0f} s afterwards")
        tally.restarts += 1
        place.close()
        place.open()


def shown(found: Innocents) -> dict[str, Any]:
    """What became of innocents, in figures."""
    return {
        "answered": len(found.waits_s),
        "lost": found.lost,
        "refused": found.refused,
        "wrong": found.wrong,
        "unready": found.unready,
        "p99_ms": round(1000 * p99(found.waits_s), 1),
        "longest_ms": round(1000 * max(found.waits_s, default=0.0), 1),
        "failures": found.failures,
    }


@contextlib.contextmanager
def start(work: Path, scale: float) -> Iterator[Case]:
    """Give what tries one attack; the quiet time is measured first."""
    for model in MODELS:
        store = build_handler(model, work / "store", work, handler=model).parent
    with own_home(work / "home"), attacks(GatewayPlace(store, work / "keys.json"), scale) as case:
        yield case


@contextlib.contextmanager
def attacks(place: Place, scale: float) -> Iterator[Case]:
    """Within, the place is open; gives what tries one of its strikes, or all of them. The quiet time is measured first."""
    try:
        place.open()
        place.ask_well(LEAST_S)  # warm
        with watched(place.pid()) as most_mb:
            quiet = place.ask_well(max(LEAST_S, QUIET_S * scale))
        quiet_p99_s = p99(quiet.waits_s)
        say(f"a quiet p99 of {1000 * quiet_p99_s:.0f} ms")

        def case(i: int, draw: object, tally: Tally) -> None:
            tally.measured["quiet"] = {**shown(quiet), "memory_mb": round(most_mb[0], 1)}
            seconds = max(LEAST_S, (TOGETHER_S if i == len(place.strikes) else ALONE_S) * scale)
            attack(place, i, quiet_p99_s, seconds, tally)

        yield case
    finally:
        place.close()


WHAT = "one hostile client beside sixteen others, each attack alone and all at once"
PART = Part("hostile", WHAT, len(ATTACKS) + 1, start, 1200.0, scaled=False, own_memory=True)
