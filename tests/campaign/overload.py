"""More than the server can do, and clients that only hold on: the gateway before TorchServe, with a model that sleeps.

Planned answers are 200 and 429. Everything else is counted against it, and so is a gateway that answers nobody afterwards.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from slotwise.bench import load
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.client.management import ManagementClient
from slotwise.frontend import process as gateway_process
from slotwise.server.record import ServerRecord
from tests.campaign.cases import Case, Part
from tests.campaign.own_server import CHOSEN, front_pid, own_home, started
from tests.campaign.tally import Tally
from tests.server.conftest import build_handler

SECONDS, LEAST_S = 60.0, 5.0  # of one step
BATCH, SLEEP_S = 8, 0.05
CAPACITY = BATCH / SLEEP_S  # requests a second, whatever the processor is
BODIES = [RequestBody(f"sleep {SLEEP_S}".encode().ljust(size)) for size in (0, 0, 0, 150_000)]  # one in four comes in pieces
SHARES = (0.5, 1.0, 2.0, 5.0, 10.0)  # of the capacity
IDLE, SLOW = 2000, 200  # connections
HEAD = b"POST /predictions/faults HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n"
GROWTH_MIB = 96


@dataclass(frozen=True)
class Front:
    """A gateway before a server."""

    server: ServerRecord
    record: gateway_process.GatewayRecord
    seconds: float
    share: float

    @property
    def target(self) -> Target:
        """Where requests go."""
        return Target(f"{self.record.url}/predictions/faults", {})

    def connect(self) -> socket.socket:
        """A connection of our own."""
        return socket.create_connection(self.target.address, timeout=10)


def arrivals(share: float) -> Callable[[Front, int, Tally], None]:
    """Open loop: requests arrive at this share of the capacity, whether they are answered or not."""

    def step(front: Front, i: int, tally: Tally) -> None:
        plan = LoadPlan(4000, front.seconds, warm_up_s=1, rate=share * CAPACITY, timeout_s=30)
        result = load.measure(front.target, BODIES, plan)
        tally.requests += result.requests
        tally.innocents += result.requests - result.errors.get("429", 0)
        tally.refused += result.errors.get("429", 0)
        for status, count in result.errors.items():
            kind = {"timeout": "hangs", "connection": "lost", "429": ""}.get(status, "unplanned")
            for _ in range(count if kind else 0):
                tally.fail(i, kind, f"{share} times the capacity: {status}")

    return step


def held(count: int, first: bytes, drip: bytes) -> Callable[[Front, int, Tally], None]:
    """So many connections that say a little and then a byte a second, and half the capacity of others meanwhile."""

    def step(front: Front, i: int, tally: Tally) -> None:
        with contextlib.ExitStack() as stack:
            holding = [stack.enter_context(front.connect()) for _ in range(max(20, round(count * front.share)))]
            for one in holding:
                one.sendall(first)
            until = time.monotonic() + front.seconds
            while time.monotonic() < until:
                plan = LoadPlan(64, 1.0, warm_up_s=0, rate=0.5 * CAPACITY, timeout_s=30)
                result = load.measure(front.target, BODIES, plan)
                tally.requests += result.requests
                tally.innocents += result.requests - result.errors.get("429", 0)
                tally.refused += result.errors.pop("429", 0)
                for status in result.errors:
                    tally.fail(i, "lost", f"{count} connections that hold on: {status}")
                for one in holding:
                    with contextlib.suppress(OSError):  # the gateway may have had enough of it
                        one.sendall(drip)

    return step


STEPS = (*map(arrivals, SHARES), held(IDLE, b"", b""), held(SLOW, HEAD, b"x"), held(SLOW, HEAD + b"\r\n", b"x"))


@contextlib.contextmanager
def start(work: Path, scale: float) -> Iterator[Case]:
    """Give what tries one step."""
    archive = build_handler("faults", work / "store", work)
    settings = {"batch_size": BATCH, "max_batch_delay": 20, "initial_workers": 1, "response_timeout": 60}
    with own_home(work / "home"):
        record = started(CHOSEN.kind, archive.parent)
        with ManagementClient(record) as client:
            client.register(archive.name, **settings)
            client.wait_ready("faults", 1)
        front = gateway_process.start_detached("default", ["--port", "0", "--translation-port", "-1"])
        try:
            gateway = Front(record, front, max(LEAST_S, SECONDS * scale), scale)
            first: list[float] = []
            yield lambda i, draw, tally: try_step(gateway, i, tally, first)
        finally:
            gateway_process.stop()


def try_step(front: Front, i: int, tally: Tally, memory: list[float]) -> None:
    """One step; afterwards one request must be answered, and the gateway's memory be what it was after the first."""
    STEPS[i](front, i, tally)
    answered = load.measure(front.target, BODIES, LoadPlan(1, None, requests=1, warm_up_s=0, timeout_s=30))
    if answered.requests != 1 or answered.lost:
        tally.fail(i, "hangs", f"afterwards nobody is answered: {answered.errors}")
    memory.append(psutil.Process(front_pid(front.server, front.record)).memory_info().rss / 2**20)
    if memory[-1] - memory[0] > GROWTH_MIB:
        tally.fail(i, "leaks", f"the gateway's memory: {memory[0]:.0f} MiB, then {memory[-1]:.0f}")


PART = Part("overload", "0.5 to 10 times the capacity, idle and slow connections", len(STEPS), start, 300.0, scaled=False)
