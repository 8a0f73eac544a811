"""Where chaos happens: a server with two workers, the gateway before it, 16 clients, and surroundings that can be broken."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from slotwise.client.live_model import LiveModel
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.errors import SlotwiseError
from slotwise.frontend import process as gateway_process
from slotwise.server.lifecycle import Kind
from tests.campaign import surroundings
from tests.campaign.killers_place import WORKERS, KillersPlace
from tests.campaign.own_server import own_home
from tests.campaign.surroundings import NotHere
from tests.server.storm import Storm

PATIENCE_S = 240.0
OPTIONS = ["--translation-port", "-1", "--drain-delay-s", "0", "--max-queued", "64"]


@dataclass
class Place(KillersPlace):
    """What is tried. clock: what sets its clock wrong; lacks: surroundings that cannot be made here, each with its reason."""

    PATIENCE_S = PATIENCE_S

    clock: Path
    lacks: dict[str, str]

    def describe(self) -> LiveModel:
        """The model, as its server says."""
        with ManagementClient(self.record) as client:
            return client.describe("killers")

    def workers(self, only_ready: bool = False) -> list[int]:
        """The pids of the workers."""
        return [worker.pid for worker in self.describe().workers if worker.ready or not only_ready]

    def worker(self, draw: Random) -> int:
        """The pid of one ready worker."""
        return draw.choice(self.workers(only_ready=True))

    def serve(self) -> None:
        """Start the server; where one of its name has crashed, in its place, as its operator would."""
        self.record = self.serving(self.kind, self.store)

    def find_gateway(self) -> None:
        """Wait until the gateway is another process than before."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            found = gateway_process.running()
            if found is not None and found.pid != self.front.pid:
                self.front = found
                return
            time.sleep(0.02)
        raise AssertionError("the gateway was not started again")

    def whole_again(self) -> None:
        """Wait until both workers are ready; what a round broke must not be seen in the next."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            with contextlib.suppress(SlotwiseError), ManagementClient(self.record) as client:
                client.wait_ready("killers", WORKERS)
                return
        raise AssertionError("the workers did not come back")


@dataclass
class Stage:
    """One place at a time: a server of another kind takes the former one's place."""

    work: Path
    store: Path
    lacks: dict[str, str] = field(default_factory=dict)
    kind: Kind | None = None
    place: Place | None = None
    storm: Storm | None = None
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def at(self, kind: Kind) -> Place:
        """The place with a server of that kind, its clients at work."""
        if self.place is None or self.kind != kind:
            self.close()
            self.kind, self.place = kind, self._open.enter_context(self._opened(kind))
        return self.place

    def close(self) -> None:
        """Everything ends; what broke stays broken for nobody."""
        self.place = None
        self._open.close()

    def _surround(self, what: str, stack: contextlib.ExitStack, make: Callable[[], AbstractContextManager[object]]) -> None:
        """Make a surrounding; where this is not possible, say so, and remember why."""
        try:
            stack.enter_context(make())
        except NotHere as error:
            if what not in self.lacks:
                self.lacks[what] = str(error)
                say(f"chaos: no {what} that can be broken: {error}")

    @contextlib.contextmanager
    def _opened(self, kind: Kind) -> Iterator[Place]:
        with contextlib.ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=self.work))  # a server of this kind may have been here before
            clock = folder / "clock"
            home = folder / "home"
            self._surround("network", stack, surroundings.own_network)
            self._surround("clock", stack, lambda: surroundings.own_clock(clock))
            self._surround("disk", stack, lambda: surroundings.small_disk(home))
            stack.enter_context(own_home(home))
            record = Place.serving(kind, self.store)
            stack.callback(gateway_process.stop)
            front = gateway_process.start_detached("default", ["--port", "0", *OPTIONS])
            self.storm = storm = Storm(front.url, [], clients=16)
            stack.enter_context(storm.in_background())
            yield Place(kind, self.store, home, record, front, clock / "clock", self.lacks)
