"""`slotwise rollout` in a process of its own, which ends itself, the gateway or the server at one of its steps.

python -m tests.deploy.killed_rollout WHOM STEP     in $SLOTWISE_HOME; STEP 0: nobody is ended

A step is each call that changes something: a record written or removed, a model registered or unregistered; there is one before
it and one after it. The last line printed is the number of steps.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, cast

import psutil

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.client.management import ManagementClient
from slotwise.deploy import rollout
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.frontend import process
from slotwise.frontend.rollout import verdict as rollout_verdict
from slotwise.frontend.rollout.record import RolloutRecord
from slotwise.server.record import ServerRecord

SETTINGS = {"batch_size": 4, "max_batch_delay": 1, "initial_workers": 1, "response_timeout": 60}
PLAN = rollout.RolloutPlan((50.0, 100.0), 0.3)


class Archive:
    """What a roll-out asks of an archive."""

    path = Path("better.mar")
    version = "2.0"
    sha256 = content = ""
    config: Mapping[str, object] = {}


class Steps:
    """Counts the steps, and ends somebody at one of them."""

    def __init__(self, whom: str, step: int) -> None:
        self.whom, self.step, self.count = whom, step, 0

    def come(self) -> None:
        """One step more."""
        self.count += 1
        if self.count != self.step:
            return
        if self.whom == "rollout":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.whom == "gateway":
            gateway = process.running()
            assert gateway is not None
            psutil.Process(gateway.pid).kill()
        else:
            print("server", flush=True)
            sys.stdin.readline()

    def around(self, owner: type, name: str) -> None:
        """Count a step before and after that method."""
        method: Callable[..., Any] = getattr(owner, name)

        @wraps(method)
        def counted(*given: Any, **named: Any) -> Any:
            self.come()
            result = method(*given, **named)
            self.come()
            return result

        setattr(owner, name, counted)


def quick() -> None:
    """Let a roll-out be as short as it can be."""
    rollout_verdict.LEAST_REQUESTS, rollout_verdict.LEAST_WINDOWS, rollout.SHORTEST_S, rollout.POLL_S = 5, 1, 0.1, 0.05


def carry_out(model: str, say: Callable[[str], None]) -> str:
    """The roll-out."""
    record = ServerRecord.load(project.state_root() / "default")
    assert record is not None
    return rollout.rollout(record, model, cast(ArchiveInfo, Archive()), SETTINGS, PLAN, say)


def main() -> int:
    """Roll out."""
    whom, step = sys.argv[1], int(sys.argv[2])
    quick()
    steps = Steps(whom, step)
    for owner, name in (
        *((RolloutRecord, "save"), (RolloutRecord, "forget")),
        *((ManagementClient, "register"), (ManagementClient, "unregister")),
    ):
        steps.around(owner, name)
    try:
        print(carry_out("digits", lambda line: print(line, flush=True)))
    except SlotwiseError as error:
        print(f"error: {error}")
        return 1
    finally:
        print(steps.count, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
