"""A share of a model's requests goes to another archive of it, registered under a name of its own; both are compared.

`slotwise rollout` writes rollout.json beside the server's record; the gateway follows it, and counts in windows what
became of both. The file names the process that wrote it: once that has ended, everything goes to the old archive again.
A 5xx of the new archive is answered by the old one.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise import project
from slotwise.gateway.limits import ClientGone
from slotwise.gateway.replies import Refused
from slotwise.gateway.upstream import ServerAnswer
from slotwise.server.process_record import ProcessRecord

if TYPE_CHECKING:
    from slotwise.gateway.inference_request import InferenceRequest

WINDOWS = 600  # kept
MISSING = 404
SHADOWS = 32  # copies at once; what comes meanwhile is not copied

Ask = Callable[["InferenceRequest"], Awaitable[ServerAnswer]]


@dataclass(frozen=True, kw_only=True)
class RolloutRecord(ProcessRecord):
    """What `slotwise rollout` wants: `percent` of the requests to `model` go to the model registered as `new`.

    shadow: the new one gets copies, and nobody its answers. step: counts what was wanted before.
    """

    model: str
    new: str
    percent: float
    shadow: bool = False
    step: int = 0
    window_s: float = 5.0

    @classmethod
    def load(cls, name: str) -> RolloutRecord | None:
        """What rollout.json says, as long as whoever wrote it runs."""
        try:
            found = cls(**json.loads(rollout_file(name).read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return found if found.alive() else None


def rollout_file(name: str) -> Path:
    """Where the record of a roll-out in front of the server `name` stands."""
    return project.state_root() / name / "rollout.json"


@dataclass
class Side:
    """What became of the requests that one archive had in one window. `seconds`: of those it answered."""

    requests: int = 0
    errors: int = 0
    seconds: list[float] = field(default_factory=list)

    def count(self, seconds: float, error: bool) -> None:
        """One request was answered, or failed."""
        self.requests += 1
        self.errors += error
        if not error:
            self.seconds.append(seconds)

    def shown(self) -> dict[str, float]:
        """Its numbers; the p99 in milliseconds, 0 where nothing was answered."""
        ranked = sorted(self.seconds)
        p99_ms = 1000 * ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))] if ranked else 0.0
        return {"requests": self.requests, "errors": self.errors, "p99_ms": round(p99_ms, 3)}


class Canary:
    """One roll-out as the gateway carries it out."""

    def __init__(self, record: RolloutRecord, clock: Callable[[], float] = time.monotonic) -> None:
        self.record, self._clock = record, clock
        self.differing = self.compared = 0  # of the shadows' answers
        self._windows: list[dict[str, Any]] = []
        self._old, self._new = Side(), Side()
        self._since = clock()
        self._copies: set[asyncio.Task[None]] = set()

    def follow(self, record: RolloutRecord) -> None:
        """Another step of the same roll-out."""
        if record.step != self.record.step:
            self._windows.clear()
            self._start_window()
        self.record = record

    def chosen(self, request: InferenceRequest) -> bool:
        """Whether this request is one of the share: by a hash of its id, so that the share of a step keeps its own."""
        return zlib.crc32(request.identity.encode()) % 10_000 < self.record.percent * 100

    async def answer(self, request: InferenceRequest, send: Ask) -> ServerAnswer:
        """Send a request to the archive it is for. Raises Refused."""
        self._turn_window()
        if not self.chosen(request):
            return await self._timed(self._old, request, send)
        copy = request.to_model(self.record.new)
        if self.record.shadow:
            answer = await self._timed(self._old, request, send)
            self._shadow(copy, answer, send)
            return answer
        failure: ServerAnswer | Refused
        try:
            failure = await self._timed(self._new, copy, send)
        except Refused as refused:
            failure = refused
        request.sent = copy.sent
        if failure.status >= 500 or (isinstance(failure, ServerAnswer) and not failure.good):
            answer = await send(request)
            if answer.good or answer.status != MISSING:  # the old archive may be gone already
                request.sent = "again"
                return answer
        if isinstance(failure, Refused):
            raise failure
        return failure

    async def _timed(self, side: Side, request: InferenceRequest, send: Ask) -> ServerAnswer:
        started = self._clock()
        try:
            answer = await send(request)
        except Refused as refused:
            if refused.status >= 500:
                side.count(self._clock() - started, error=True)
            raise
        side.count(self._clock() - started, answer.status >= 500)
        return answer

    def _shadow(self, copy: InferenceRequest, answer: ServerAnswer, send: Ask) -> None:
        """Ask the new archive as well, once the client has its answer; what comes of it is compared."""
        if len(self._copies) >= SHADOWS or copy.traffic.limit.full:
            return

        async def compare() -> None:
            try:
                other = await self._timed(self._new, copy, send)
            except (Refused, ClientGone):
                return
            self.compared += 1
            self.differing += not _same(answer, other)

        task = asyncio.create_task(compare())
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)

    def _turn_window(self) -> None:
        """Close the window that is over."""
        if self._clock() - self._since >= self.record.window_s:
            if self._old.requests or self._new.requests:
                self._windows.append({"old": self._old.shown(), "new": self._new.shown()})
                del self._windows[:-WINDOWS]
            self._start_window()

    def _start_window(self) -> None:
        self._old, self._new, self._since = Side(), Side(), self._clock()

    def shown(self) -> dict[str, Any]:
        """What `slotwise rollout` reads in /status."""
        self._turn_window()
        kept = {key: getattr(self.record, key) for key in ("model", "new", "percent", "shadow", "step")}
        return {**kept, "windows": self._windows, "compared": self.compared, "differing": self.differing}


def _same(one: ServerAnswer, other: ServerAnswer) -> bool:
    """Whether two answers say the same; numbers may differ in the third digit, as kernels do."""
    if one.status != other.status or one.body == other.body:
        return one.status == other.status
    try:
        return bool(_rounded(json.loads(one.body)) == _rounded(json.loads(other.body)))
    except ValueError:
        return False


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 2)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
