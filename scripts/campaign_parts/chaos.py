"""Processes that die or stop, and files that vanish or tear, while clients ask: a gateway before TorchServe with two workers.

After each round the clients get right answers again, and none of them was lost or answered wrong.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil
from measuring.about import ROOT

from campaign_parts.cases import Case, Part
from campaign_parts.own_server import torchserve
from campaign_parts.tally import Tally
from slotwise.archive.build import build
from slotwise.client.management import ManagementClient
from slotwise.errors import SlotwiseError
from slotwise.gateway import process as gateway_process
from slotwise.server.lifecycle import ServerRecord

CLIENTS, WORKERS = 16, 2
BETWEEN = 100  # right answers after a round
PATIENCE_S = 120.0
SETTINGS = {"batch_size": 8, "max_batch_delay": 10, "initial_workers": WORKERS, "response_timeout": 60}


@dataclass(frozen=True)
class Place:
    """What is tried: the server, its gateway, and who may be hurt."""

    record: ServerRecord
    gateway: gateway_process.GatewayRecord
    management: ManagementClient

    def worker(self, draw: Random) -> int:
        """The pid of one ready worker."""
        return draw.choice([worker.pid for worker in self.management.describe("killers").workers if worker.ready])


def kill_worker(place: Place, draw: Random) -> None:
    """SIGKILL, in the middle of whatever it does."""
    os.kill(place.worker(draw), signal.SIGKILL)


def kill_both(place: Place, draw: Random) -> None:
    """SIGKILL for every worker at once."""
    for worker in place.management.describe("killers").workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)


def stopped(pid: Callable[[Place, Random], int]) -> Callable[[Place, Random], None]:
    """SIGSTOP, and SIGCONT a while later."""

    def event(place: Place, draw: Random) -> None:
        victim = psutil.Process(pid(place, draw))
        victim.suspend()
        try:
            time.sleep(draw.uniform(0.2, 4.0))
        finally:
            victim.resume()

    event.__doc__ = f"SIGSTOP and SIGCONT: {pid.__name__}"
    return event


def server(place: Place, draw: Random) -> int:
    """Java's process."""
    return place.record.pid


def gateway(place: Place, draw: Random) -> int:
    """The gateway's process."""
    return place.gateway.pid


def worker(place: Place, draw: Random) -> int:
    """One worker."""
    return place.worker(draw)


def without(name: str, content: bytes | None) -> Callable[[Place, Random], None]:
    """A file of the state folder is gone (None) or torn for a while."""

    def event(place: Place, draw: Random) -> None:
        file = place.record.state_dir / name
        before = file.read_bytes()
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        try:
            time.sleep(draw.uniform(1.0, 4.0))
        finally:
            file.write_bytes(before)

    event.__doc__ = f"{name} is {'gone' if content is None else 'torn'}"
    return event


def scaled(place: Place, draw: Random) -> None:
    """A worker more, and one fewer again."""
    for workers in (WORKERS + 1, WORKERS):
        place.management.scale("killers", workers)
        place.management.wait_ready("killers", workers)


EVENTS = (
    *(kill_worker, kill_both, stopped(worker), stopped(server), stopped(gateway), scaled),
    *(without("key_file.json", None), without("server.json", b'{"na'), without("server.json", None)),
)


@contextlib.contextmanager
def start(work: Path, scale: float) -> Iterator[Case]:
    """Give what tries one round."""
    from tests.server.storm import Storm

    folder = work / "killers"
    folder.mkdir()
    shutil.copy(ROOT / "tests" / "server" / "handlers" / "killers.py", folder)
    (folder / "model.toml").write_text('name = "killers"\nhandler = "killers.py"\n', "utf-8")
    archive = build(folder, work / "store")
    with torchserve(work / "home", archive.parent) as record, ManagementClient(record) as management:
        management.register(archive.name, **SETTINGS)
        management.wait_ready("killers", WORKERS)
        options = ["--port", "0", "--translation-port", "-1", "--drain-delay-s", "0", "--max-queued", "64"]
        front = gateway_process.start_detached("default", options)
        place, storm = Place(record, front, management), Storm(front.url, [], clients=CLIENTS)
        try:
            with storm.in_background():
                storm.wait_for(BETWEEN, PATIENCE_S)
                yield lambda i, draw, tally: try_round(place, storm, i, draw, tally)
        finally:
            gateway_process.stop()


def try_round(place: Place, storm: object, i: int, draw: Random, tally: Tally) -> None:
    """One event, then right answers again; the events take turns."""
    from tests.server.storm import Storm

    assert isinstance(storm, Storm)
    right, lost, event = storm.right, len(storm.lost), EVENTS[i % len(EVENTS)]
    what = (event.__doc__ or "").splitlines()[0]
    try:
        event(place, draw)
        storm.wait_for(BETWEEN, PATIENCE_S)
        _whole_again(place)
    except AssertionError as error:
        tally.fail(i, "hangs", f"{what}: {error}")
    tally.restarts += event in (kill_worker, kill_both)
    missing = storm.lost[lost:]
    tally.requests += storm.right - right + len(missing)
    tally.innocents += storm.right - right + len(missing)
    for one in missing:
        tally.fail(i, "lost", f"{what}: {one}")


def _whole_again(place: Place) -> None:
    """Wait until both workers are ready; what a round broke must not be seen in the next."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with contextlib.suppress(SlotwiseError):
            place.management.wait_ready("killers", WORKERS)
            return
    raise AssertionError("the workers did not come back")


PART = Part("chaos", "processes killed and stopped, files gone and torn, under 16 clients", 200, start, 300.0)
