"""A server of a part's own, as `slotwise serve` starts it, and a gateway before it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slotwise.console import say
from slotwise.errors import SlotwiseError
from slotwise.frontend.process import GatewayRecord
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import Kind, ServerRecord, running, stop
from slotwise.server.lifecycle import start as start_server
from slotwise.server.processes import processes_of

ATTEMPTS = 3
NAMES = ("default", "default-b", "default-c", "default-old")  # a server's own, and what a swap calls them meanwhile


@contextlib.contextmanager
def own_home(home: Path) -> Iterator[None]:
    """$SLOTWISE_HOME is `home`; every server that is started within is stopped."""
    before = os.environ.get("SLOTWISE_HOME")
    os.environ["SLOTWISE_HOME"] = str(home)
    try:
        yield
    finally:
        for name in NAMES:
            left = running(name)
            if left is not None:
                stop(left)
        os.environ.pop("SLOTWISE_HOME")
        if before is not None:
            os.environ["SLOTWISE_HOME"] = before


def started(kind: Kind, store: Path, name: str = "default", ports: Ports | None = None) -> ServerRecord:
    """A server with nothing registered. On a machine that is too busy to start one in time it is tried again."""
    profile = load_profile("cpu", environ={})
    for attempt in range(ATTEMPTS):
        try:
            return start_server(name, kind, profile, model_store=store, ports=ports or Ports.free(), models={})
        except SlotwiseError as error:
            if attempt == ATTEMPTS - 1:
                raise
            say(f"{error}; once more")
    raise AssertionError("unreachable")


@dataclass
class Chosen:
    """The server that parts are tried on which can be tried on several (--server)."""

    kind: Kind = "torchserve"


CHOSEN = Chosen()


def front_pid(record: ServerRecord, front: GatewayRecord) -> int:
    """The process that answers a gateway's clients."""
    return record.pid if record.kind == "slotwise" else front.pid


@contextlib.contextmanager
def torchserve(home: Path, store: Path) -> Iterator[ServerRecord]:
    """TorchServe with nothing registered; `home` is $SLOTWISE_HOME for as long as it runs."""
    with own_home(home):
        yield started("torchserve", store)


def left_running(run_ids: set[str]) -> list[str]:
    """The processes of these runs that still live: there must be none."""
    return [f"{process.pid} {process.name()}" for run_id in run_ids for process in processes_of(run_id)]
