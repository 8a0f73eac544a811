"""A long time under load: each server behind the gateway at 80% of what it can do, while workers die, change and are swapped.

More than 150 a second are never asked (Ray: 60): one in 500 ends its worker, and another one when it is tried alone, and a new
one takes a second to start (Ray: four).

The capacity is measured first, with the same mix of bodies: one in 20 is bad, one in 500 ends its worker. Samples of all
processes say what grows.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Any

import psutil

from slotwise.console import say
from slotwise.frontend import process as gateway_process
from slotwise.frontend.rollout.swap import swap
from slotwise.server.lifecycle import Kind, ServerRecord
from slotwise.server.processes import processes_of
from tests.campaign.cases import Case, Part
from tests.campaign.chaos_events import RAY
from tests.campaign.killers_place import WORKERS, KillersPlace, archive_in
from tests.campaign.own_server import left_running, own_home
from tests.campaign.resources import Watch
from tests.campaign.soak_load import BAD_BODY, SoakLoad
from tests.campaign.tally import Tally

HOSTS: tuple[Kind, ...] = ("torchserve", "mms", "ray", "slotwise")
SECONDS, LEAST_S = 1800.0, 5.0  # of one server
EVENTS_APART_S, FEWEST_EVENTS = 300.0, 2  # a scale and a swap in turn
MEASURED = (0.1, 5.0, 60.0)  # for how long the capacity is: a share of the time, at least, at most
SHARE, MOST_A_S, RAYS_MOST = 0.8, 150.0, 60.0
SAMPLES = 240
MMS_KEEPS = {"threads": 2.0, "files": 2.0, "memory_mib": 0.6}  # of each worker that died: its own fault, in docs/reliability.md
QUEUED = 1024  # what comes while both workers are dead waits
READY_S = 600.0  # a worker that starts on a busy machine, while others are killed


@dataclass
class Place(KillersPlace):
    """One server behind a gateway; a swap puts another record here."""

    PATIENCE_S = READY_S

    run_ids: set[str] = field(default_factory=set)
    events: list[str] = field(default_factory=list)

    def scale(self) -> None:
        """A worker more, and one fewer again."""
        for workers in (WORKERS + 1, WORKERS):
            self.scale_to(workers)

    def swap(self) -> None:
        """Another server in its place, as `slotwise apply` would put it there."""
        self.record = swap(self.record, lambda name, ports: self.serving(self.kind, self.store, name, ports))
        self.run_ids.add(self.record.run_id)

    def processes(self) -> dict[int, str]:
        """The pids with their roles."""
        found = {process.pid: role(self.record, process) for process in processes_of(self.record.run_id)}
        with contextlib.suppress(psutil.Error):
            front = psutil.Process(self.front.pid)
            found |= {process.pid: "gateway" for process in [front, *front.children(recursive=True)]}
        return found


def role(record: ServerRecord, process: psutil.Process) -> str:
    """What a process of a server is."""
    if process.pid == record.pid:
        return record.kind
    with contextlib.suppress(psutil.Error):
        name = process.name()
        return f"{record.kind}: {name.partition(':')[0] if name.startswith('ray') else name}"
    return f"{record.kind}: ended"


@contextlib.contextmanager
def start(work: Path, scale: float) -> Iterator[Case]:
    """Give what soaks one server."""
    store = archive_in(work)
    yield lambda i, draw, tally: soak(HOSTS[i], store, work / HOSTS[i], max(LEAST_S, SECONDS * scale), i, draw, tally)


def soak(kind: Kind, store: Path, home: Path, seconds: float, i: int, draw: Random, tally: Tally) -> None:
    """One server, so long."""
    if kind == RAY and importlib.util.find_spec("ray") is None:
        say('soak: Ray is LEFT OUT, it is not installed here: pip install "ray[serve]"')
        tally.measured[kind] = {"left_out": "not installed"}
        return
    with own_home(home):
        record = Place.serving(kind, store)
        options = ["--port", "0", "--translation-port", "-1", "--drain-delay-s", "0", "--max-queued", str(QUEUED)]
        front = gateway_process.start_detached("default", options)
        place = Place(kind, store, home, record, front, {record.run_id})
        try:
            capacity = _capacity(place, seconds, draw)
            rate = min(RAYS_MOST if kind == RAY else MOST_A_S, SHARE * capacity)
            load = SoakLoad(front.url, draw, rate=rate, hidden=str(home))
            watch = Watch(place.processes, seconds / SAMPLES)
            say(f"soak: {kind} does {capacity:.0f} a second; now {rate:.0f} for {seconds:.0f} s")
            began = time.monotonic()
            with watch.watching(), load.in_background():
                _events(place, load, began, seconds)
            _count(place, load, watch, seconds, i, tally)
            tally.measured[kind] |= {"seconds": round(time.monotonic() - began), "capacity": round(capacity, 1)}
        finally:
            gateway_process.stop()
    for process in left_running(place.run_ids):
        tally.fail(i, "leaks", f"{kind}: still runs after its end: {process}")


def _capacity(place: Place, seconds: float, draw: Random) -> float:
    """Answers a second to the same mix, with as many clients as two batches a worker keep busy."""
    share, least, most = MEASURED
    load = SoakLoad(place.front.url, draw)
    with load.in_background():
        began = time.monotonic()
        while time.monotonic() - began < min(most, max(least, share * seconds)) or load.answered < 100:
            time.sleep(0.1)
            if time.monotonic() - began > READY_S:
                raise AssertionError(f"{place.kind} answered {load.answered} requests in {READY_S:.0f} s")
        return load.answered / (time.monotonic() - began)


def _events(place: Place, load: SoakLoad, began: float, seconds: float) -> None:
    """A scale and a swap in turn, evenly over the time; returns when it is over."""
    count = max(FEWEST_EVENTS, round(seconds / EVENTS_APART_S))
    events: tuple[Callable[[], None], ...] = (place.scale, place.swap)
    for number in range(count):
        _sleep_until(began + seconds * (number + 1) / (count + 1))
        event = events[number % len(events)]
        event()
        place.events.append(event.__name__)
        say(f"soak: {place.kind}: {event.__name__} done, {load.answered} answered, {len(load.failures)} failures")
    _sleep_until(began + seconds)


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


def _count(place: Place, load: SoakLoad, watch: Watch, seconds: float, i: int, tally: Tally) -> None:
    """Everything that was asked in so many seconds, and what its processes hold."""
    tally.requests += load.answered
    tally.innocents += load.good.total() - load.full
    tally.refused += load.bad["400"] + load.full + load.killers.total()
    deaths = sum(len(file.read_text("utf-8").splitlines()) for file in place.home.rglob("deaths.txt"))
    tally.restarts += deaths
    for kind, text in load.failures:
        tally.fail(i, kind, f"{place.kind}: {text}")
    for pid, slopes in watch.slopes().items():
        keeps = MMS_KEEPS if watch.roles[pid] == "mms" else {}
        for slope in (one for one in slopes if one.leaks(keeps.get(one.what, 0.0) * deaths * one.seconds / seconds)):
            grew = f"{slope.what} by {slope.growth:.0f} (noise {slope.noise:.0f}) in {slope.seconds:.0f} s"
            tally.fail(i, "leaks", f"{watch.roles[pid]}: {grew}, from {slope.first:.0f}")
    for text in _seen_by_others(place):
        tally.fail(i, "wrong", f"{place.kind}: {text}")
    for file in _telling(place):
        tally.fail(i, "wrong", f"{place.kind}: a token or a client's body stands in {file}")
    counts = {"answers": dict(load.good), "bad": dict(load.bad), "killers": dict(load.killers)}
    tally.measured[place.kind] = {**counts, "events": place.events, "rate": load.rate, "processes": watch.table()}


def _keys(place: Place) -> list[bytes]:
    """The server's tokens and the gateway's key."""
    keys = [place.front.key.encode()] if place.front.key else []
    with contextlib.suppress(OSError, ValueError):
        listed: dict[str, Any] = json.loads((place.record.state_dir / "key_file.json").read_text("utf-8"))
        keys += [str(one["key"]).encode() for one in listed.values()]
    return keys


def _telling(place: Place) -> list[str]:
    """The logs that hold a key, or a bad body."""
    secret = re.compile(b"|".join([*map(re.escape, _keys(place)), re.escape(BAD_BODY) + rb"\d"]))
    logs = [file for pattern in ("*.log", "*.out", "*.err") for file in place.home.rglob(pattern) if file.is_file()]
    return [file.name for file in logs if secret.search(file.read_bytes())]


def _seen_by_others(place: Place) -> list[str]:
    """What others on this machine or beyond it see: keys in a list of processes, ports beyond loopback, calls to elsewhere.

    One port of each replica of Ray is open, as SECURITY.md says.
    """
    found, keys = [], _keys(place)
    for pid, what in place.processes().items():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if any(key in " ".join(process.cmdline()).encode() for key in keys):
                found.append(f"the command line of {what} shows a key")
            for one in process.net_connections("inet"):
                ip = (one.raddr or one.laddr).ip
                known = one.status == psutil.CONN_LISTEN and what == f"{RAY}: {RAY}"
                if not known and not ip_address(ip.removeprefix("::ffff:")).is_loopback:
                    found.append(f"{what}: {one.status} at {ip}")
    return found


PART = Part(
    "soak",
    f"{', '.join(HOSTS)} behind the gateway at {SHARE:.0%} of their capacity; workers die, change and are swapped",
    len(HOSTS),
    start,
    3600.0,
    scaled=False,
)
