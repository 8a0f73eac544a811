"""Put another server behind a running gateway without losing a request: from profile to profile, TorchServe to MMS.

    1. the new server starts beside the old one, in a folder and on ports of its own, until its models are READY
    2. server.json of the name says "new": the gateway follows within a second
    3. what is in flight at the old server is answered
    4. the old server is stopped

Until step 2 nothing has changed: where the new server does not come up, the old one goes on. From step 2 until it is
stopped the old one is called NAME-old, so that `slotwise stop` always finds both.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.frontend.process import running
from slotwise.server.lifecycle import Ports, ServerRecord
from slotwise.server.lifecycle import running as running_server
from slotwise.server.lifecycle import stop as stop_server

FOLLOW_TIMEOUT_S = 30.0
DRAIN_GRACE_S = 10.0
POLL_S = 0.1

StartReady = Callable[[str, Ports], ServerRecord]


def swap(old: ServerRecord, start_ready: StartReady, say: Callable[[str], None] = lambda message: None) -> ServerRecord:
    """Replace the server `old` by the one that `start_ready(name, ports)` starts; returns it under old's name.

    Raises SlotwiseError where a server of one of the names that this needs was started on its own.

    start_ready starts a server of that (temporary) name on these ports, registers every model and returns once all are
    READY; when it raises, nothing of it is left running, `old` goes on serving, and the error is raised here.
    Where the gateway does not follow, where requests stay at `old` for longer than the gateway drains, or Ctrl-C comes before,
    both go on running, and `say` tells how to end them.
    """
    spare, former = _spare_name(old), f"{old.name}-old"
    leftovers = [found for name in (spare, former) if (found := running_server(name)) and found.run_id != old.run_id]
    for leftover in leftovers:
        if leftover.state_dir.name == leftover.name:  # it was started by that name: perhaps it is no swap's
            message = f"a server {leftover.name} runs, and {old.name} needs that name to change over"
            raise SlotwiseError(message, f"`slotwise stop {leftover.name}` where it is not needed")
    for leftover in leftovers:
        stop_server(leftover)  # of a swap that ended half-way
    try:
        new = start_ready(spare, Ports.free())
    except BaseException:
        failed = running_server(spare)
        if failed is not None:
            stop_server(failed)
        raise
    leaving = dataclasses.replace(old, name=former)
    leaving.save(project.state_dir(former))
    new = _adopt(new, old.name)
    try:
        patience_s = _wait_until_moved(new, say)
    except BaseException:
        say(f"both servers run: `slotwise stop {former}` ends the old one, `slotwise stop {new.name}` the new one")
        raise
    say(f"stopping the old {old.kind} (pid {old.pid})")
    stop_server(leaving, patience_s)
    return new


def _spare_name(old: ServerRecord) -> str:
    """A folder for the new server: NAME-b, or NAME-c while the old one lives in NAME-b."""
    first, second = f"{old.name}-b", f"{old.name}-c"
    return second if old.state_dir.name == first else first


def _adopt(new: ServerRecord, name: str) -> ServerRecord:
    """Give the new server its `name`, in one atomic step; its files stay in the folder it started in."""
    adopted = dataclasses.replace(new, name=name)
    adopted.save(project.state_dir(name))
    (new.state_dir / "server.json").unlink(missing_ok=True)
    return adopted


def _wait_until_moved(new: ServerRecord, say: Callable[[str], None]) -> float:
    """Wait until the gateway, if one runs, sends every request to `new` and none is in flight at an earlier server.

    Returns how long a host of ours may take for what it has in hand: it answers that itself, before it ends.
    """
    gateway = running(new.name)
    if gateway is None:
        return 0.0
    say(f"the gateway at {gateway.url} switches over")
    try:
        deadline = time.monotonic() + FOLLOW_TIMEOUT_S
        while (gateway.status()["server"] or {}).get("pid") != new.pid:
            if time.monotonic() > deadline:
                raise SlotwiseError("the gateway did not follow to the new server")
            time.sleep(POLL_S)
        deadline = time.monotonic() + gateway.drain_s + DRAIN_GRACE_S
        while leaving := gateway.status()["leaving"]:
            if time.monotonic() > deadline:
                raise SlotwiseError(f"{leaving} request(s) are still at the old server after {gateway.drain_s:.0f} s")
            time.sleep(POLL_S)
    except SlotwiseError:
        if gateway.alive():  # else nobody is left who could send to the old one
            raise
    return gateway.drain_s
