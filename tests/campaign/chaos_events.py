"""What happens to a server, its gateway and their surroundings; each event ends with everything whole again or on its way."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import psutil

from slotwise.archive.inspection import inspect
from slotwise.deploy.rollout import RolloutPlan, RolloutRejected, rollout
from slotwise.server.lifecycle import Kind
from slotwise.server.processes import processes_of
from tests.campaign import surroundings
from tests.campaign.chaos_place import PATIENCE_S, Place
from tests.campaign.killers_place import SETTINGS, WORKERS
from tests.server.storm import Storm

KINDS: tuple[Kind, ...] = ("torchserve", "mms", "slotwise")
RAY: Kind = "ray"
NO_SERVER = ("502 ", "503 ")  # nobody is there to answer, until its operator starts one
NO_GATEWAY = ("ClientConnectorError", "ServerDisconnectedError", "ClientOSError", "ClientConnectionResetError")


@dataclass(frozen=True)
class Event:
    """One event. planned: how what clients get instead of answers may begin, as their connection breaks.

    needs: the surrounding that it breaks. restarts: workers that it ends.
    """

    what: str
    happen: Callable[[Place, Random], None]
    kinds: tuple[Kind, ...] = KINDS
    planned: tuple[str, ...] = ()
    needs: str = ""
    restarts: int = 0


def kill_worker(place: Place, draw: Random) -> None:
    """SIGKILL, in the middle of whatever it does."""
    os.kill(place.worker(draw), signal.SIGKILL)


def kill_both(place: Place, draw: Random) -> None:
    """SIGKILL for every worker at once."""
    for pid in place.workers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_server(place: Place, draw: Random) -> None:
    """Java's process dies; its operator starts another one a while later."""
    os.kill(place.record.pid, signal.SIGKILL)
    time.sleep(draw.uniform(0.0, 2.0))
    place.serve()


def kill_node(place: Place, draw: Random) -> None:
    """The process that is Ray's node dies, and so the server; its operator starts another one."""
    server = psutil.Process(place.record.pid)
    next(one for one in processes_of(place.record.run_id) if one.name() == "raylet").kill()
    server.wait(PATIENCE_S)
    place.serve()


def kill_gateway(place: Place, draw: Random) -> None:
    """The gateway's process dies; its keeper starts another one."""
    psutil.Process(place.front.pid).kill()
    place.find_gateway()


def stopped(pid: Callable[[Place, Random], int]) -> Callable[[Place, Random], None]:
    """SIGSTOP, and SIGCONT a while later."""

    def event(place: Place, draw: Random) -> None:
        victim = psutil.Process(pid(place, draw))
        victim.suspend()
        try:
            time.sleep(draw.uniform(0.2, 4.0))
        finally:
            victim.resume()

    return event


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

    return event


def scaled(place: Place, draw: Random) -> None:
    """A worker more, and one fewer again."""
    for workers in (WORKERS + 1, WORKERS):
        place.scale_to(workers)


def killer_body(place: Place, draw: Random) -> None:
    """A body that ends its worker comes four times, from a sender of its own: only the first one may reach a worker."""
    statuses = Storm(place.front.url, []).try_killer(b"exit %d" % draw.randrange(10**9), 4)
    if statuses != [500, 422, 422, 422]:
        raise RuntimeError(f"a body that ends its worker: {statuses}")


def rolled_out(place: Place, draw: Random) -> None:
    """An archive takes a share of the requests, then all, then the model's name; one that was slower by chance goes back."""
    plan = RolloutPlan((draw.choice((10.0, 50.0)), 100.0), draw.uniform(2.0, 4.0))
    with contextlib.suppress(RolloutRejected):
        rollout(place.record, "killers", inspect(place.store / "killers.mar"), SETTINGS, plan, say=lambda _: None)


def full_disk(place: Place, draw: Random) -> None:
    """Not a byte can be written where the server's state, its logs and its archives are."""
    with surroundings.filled(place.home):
        time.sleep(draw.uniform(1.0, 4.0))


def kill_worker_on_full_disk(place: Place, draw: Random) -> None:
    """A worker starts, and can write nothing."""
    with surroundings.filled(place.home):
        os.kill(place.worker(draw), signal.SIGKILL)
        time.sleep(draw.uniform(2.0, 6.0))


def jumping(*seconds: int) -> Callable[[Place, Random], None]:
    """The clock goes wrong by one of these, and is set right again."""

    def event(place: Place, draw: Random) -> None:
        surroundings.jump(place.clock, draw.choice(seconds))
        try:
            time.sleep(draw.uniform(1.0, 4.0))
        finally:
            surroundings.jump(place.clock, 0)

    return event


def dropping(percent: int) -> Callable[[Place, Random], None]:
    """Packets get lost."""

    def event(place: Place, draw: Random) -> None:
        with surroundings.dropping(percent):
            time.sleep(draw.uniform(1.0, 4.0))

    return event


def narrow(place: Place, draw: Random) -> None:
    """Everything waits on the wire."""
    with surroundings.narrow(400):
        time.sleep(draw.uniform(1.0, 4.0))


EVENTS = (
    Event("a worker is killed", kill_worker, kinds=(*KINDS, RAY), restarts=1),
    Event("every worker is killed", kill_both, kinds=(*KINDS, RAY), restarts=WORKERS),
    Event("the node is killed, and started again", kill_node, (RAY,), (*NO_SERVER, *NO_GATEWAY), restarts=WORKERS),
    Event("the server is killed, and started again", kill_server, planned=(*NO_SERVER, *NO_GATEWAY), restarts=WORKERS),
    Event("the gateway is killed, and started again", kill_gateway, planned=NO_GATEWAY),
    Event("the disk is full", full_disk, needs="disk"),
    Event("the disk is full, and a worker is killed", kill_worker_on_full_disk, needs="disk", restarts=1),
    Event("the clock is an hour fast, or a year", jumping(3600, 366 * 86400), needs="clock"),
    Event("the clock is an hour slow, or a year", jumping(-3600, -366 * 86400), needs="clock"),
    Event("the network loses one packet in five", dropping(20), needs="network"),
    Event("the network is cut", dropping(100), needs="network"),
    Event("the network is slow", narrow, needs="network"),
    Event("a worker stops for a while", stopped(lambda place, draw: place.worker(draw))),
    Event("the server stops for a while", stopped(lambda place, draw: place.record.pid)),
    Event("the gateway stops for a while", stopped(lambda place, draw: place.front.pid)),
    Event("a worker more, and one fewer", scaled),
    Event("a body ends its worker, again and again", killer_body, restarts=2),
    Event("an archive is rolled out", rolled_out),
    Event("key_file.json is gone", without("key_file.json", None), kinds=("torchserve", "slotwise")),
    Event("server.json is torn", without("server.json", b'{"na')),
    Event("server.json is gone", without("server.json", None)),
)
ROUNDS = tuple((kind, event) for kind in (*KINDS, RAY) for event in EVENTS if kind in event.kinds)
