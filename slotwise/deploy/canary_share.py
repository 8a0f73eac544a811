"""The share of a model's requests that goes to its new archive, as the gateway is told by a file, and what it says of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from slotwise.errors import SlotwiseError
from slotwise.frontend import process

if TYPE_CHECKING:
    from slotwise.frontend.rollout.record import RolloutRecord

POLL_S = 0.25
FOLLOW_S = 30.0
DRAIN_GRACE_S = 10.0  # past the time that the gateway gives a request


class CanaryShare:
    """One roll-out's record, and the gateway that follows it.

    A gateway that dies is started again by its keeper within seconds, and reads the record again: it is waited for.
    """

    def __init__(self, record: RolloutRecord) -> None:
        self.record = record

    def write(self, **changes: Any) -> None:
        """Have the record say something else, and wait until the gateway follows.

        Raises SlotwiseError where it does not. Where none runs nobody sends requests to either archive by the record.
        """
        self.record = dataclasses.replace(self.record, step=self.record.step + 1, **changes)
        self.record.save()
        own = (self.record.pid, self.record.step)
        self._await(lambda rollout: rollout is not None and (rollout["owner"], rollout["step"]) == own)

    def forget(self) -> None:
        """End it: `new` is gone."""
        self.record.forget()

    def counted(self) -> dict[str, Any]:
        """What the gateway has counted since the share was set. Raises SlotwiseError where no gateway runs."""
        status = self._status()
        if status is None:
            raise SlotwiseError("the gateway has ended", "`slotwise gateway --detach` starts one")
        counted = self._own(status)
        if counted is None:
            raise SlotwiseError("the gateway has lost the roll-out", "its log says why")
        return counted

    def drain(self, model: str) -> None:
        """Wait until the gateway has nothing at that model: unregistering it would lose what waits there.

        Raises SlotwiseError where that takes longer than the gateway gives a request.
        """
        gateway = process.running(self.record.name)
        deadline = time.monotonic() + (gateway.drain_s if gateway else 0) + DRAIN_GRACE_S
        while True:
            status = self._status()
            loads = [load for load in (status or {"models": []})["models"] if load["name"] == model]
            left = sum(load["chosen"] for load in loads)
            if not left:
                return
            if time.monotonic() > deadline:
                raise SlotwiseError(f"{left} requests are still at {model}", "the gateway's log may say why")
            time.sleep(POLL_S)

    def _await(self, done: Callable[[dict[str, Any] | None], bool]) -> None:
        deadline = time.monotonic() + FOLLOW_S
        while (status := self._status()) is not None and not done(self._own(status)):
            if time.monotonic() > deadline:
                raise SlotwiseError("the gateway did not follow", "its log says why")
            time.sleep(POLL_S)

    def _own(self, status: dict[str, Any]) -> dict[str, Any] | None:
        own: list[dict[str, Any]] = [rollout for rollout in status["rollouts"] if rollout["model"] == self.record.model]
        return own[0] if own else None

    def _status(self) -> dict[str, Any] | None:
        """The gateway's status; None where none runs. Raises SlotwiseError where one runs and does not answer for a while."""
        deadline = time.monotonic() + FOLLOW_S
        while True:
            gateway = process.running(self.record.name)
            if gateway is None:
                return None
            try:
                return gateway.status()
            except SlotwiseError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(POLL_S)
