"""A share of a model's requests goes to another archive of it, registered under a name of its own; both are compared.

`slotwise rollout` writes a record for each model (record.py); the gateway follows it. What the new archive fails at, or
has no place for, is answered by the old one, and while one of the two is not there the other answers. What was read for the
old one goes to the new one only where that wants the same.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise.backends.exchange import AnsweredBy, Asleep
from slotwise.backends.interface import ANOTHER_ARCHIVE, BackendAnswer, BackendRequest, Refused
from slotwise.frontend.admission.large_work import LARGE_BYTES
from slotwise.frontend.admission.limits import ClientGone
from slotwise.frontend.rollout.canary_windows import Comparison, Which
from slotwise.frontend.rollout.record import RolloutRecord
from slotwise.worker.separability.agree import agree
from slotwise.worker.separability.audit import parsed

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel

BUSY, NO_WORKER = 429, 503
NEAR = 0.01  # so far a number may be from the old archive's
SHADOWS = 32  # copies at once; what comes meanwhile is not copied
BUCKETS = 10_000
SAME_LOAD = (0.4, 0.6)  # shares at which both have about the same load, and fill their batches alike: times can be compared

Sent = TypeVar("Sent", bound=BackendRequest)
Outcome = BackendAnswer | Refused
Ask = Callable[[Sent], Awaitable[BackendAnswer]]


class Canary:
    """One roll-out as the gateway carries it out."""

    def __init__(self, record: RolloutRecord, clock: Callable[[], float] = time.monotonic) -> None:
        self.record, self._clock = record, clock
        self.differing = self.compared = 0  # of the shadows' answers
        self.unsuited = 0  # requests that the new archive did not get, because it takes something else
        self.uncopied = 0  # requests that a shadow did not get, because they must not be sent twice
        self.comparison = Comparison(record.window_s, clock)
        self._copies: set[asyncio.Task[None]] = set()

    def follow(self, record: RolloutRecord) -> None:
        """Another step of the same roll-out."""
        if record.step != self.record.step:
            self.comparison.restart()
        self.record = record

    @property
    def share(self) -> float:
        """The part of the requests that goes to the new archive."""
        return min(max(self.record.percent / 100, 0.0), 1.0)

    def chosen(self, request: BackendRequest) -> bool:
        """Whether this request is one of the share: by a hash of its id, so that the share of a step keeps its own.

        A request's records are in the share together. One that names a version goes to an archive of that version, and is in
        the share only where both have it. A stream, which cannot be taken back, and records that both have answered go to the
        new archive once that replaces the old.
        """
        if _stays(request) and self.record.phase != "replacing":
            return False
        old, new = self.record.versions
        if request.version and (old, new) != (request.version, request.version):
            only_new = request.version == new and request.version != old
            return only_new and not self.record.shadow and self.record.phase != "leaving"
        return _bucket(request) < self.share * BUCKETS

    def _group(self, request: BackendRequest) -> Which | None:
        """Whose group of the comparison this request is in: both are equally large, and beside each other."""
        if _stays(request) or (request.version and self.record.versions != (request.version, request.version)):
            return None
        share = round(self.share * BUCKETS)
        size, bucket = min(share, BUCKETS - share), _bucket(request)
        if share - size <= bucket < share:
            return "new"
        return "old" if share <= bucket < share + size else None

    @property
    def _being_replaced(self) -> bool:
        """Whether the old archive is taken away at any moment: what goes there would be lost."""
        return self.record.phase == "replacing" and not self.record.interrupted

    async def answer(self, request: Sent, send: Ask[Sent]) -> BackendAnswer:
        """Send a request to the archive it is for. Raises Refused."""
        self._turn_window()
        if self.record.shadow:
            return await self._shadowed(request, send)
        if not request.suits(self.record.new):
            self.unsuited += self.chosen(request)
            return await self._unsuited(request, send)
        group, copy = self._group(request), request.to_model(self.record.new)
        if not self.chosen(request):
            return await self._from_old(request, copy, send, group)
        failure = await self._by_new(request, copy, self._counted(group, copy, send))
        request.sent = copy.sent
        if self._old_may_answer(request, copy, failure):
            answer = await _outcome(request, send)
            if not answer.missing:
                request.sent = "again"
                return _answer(answer)
        return _answer(failure)

    async def _from_old(self, request: Sent, copy: Sent, send: Ask[Sent], group: Which | None) -> BackendAnswer:
        """The old archive's answer; while that is not there, the new one's."""
        if self._being_replaced and request.version:
            raise Refused(503, f"version {request.version} is being replaced, try again later", retry_after_s=1)
        answer = await self._counted(group, request, send)
        if answer.missing and request.version in ("", self.record.versions[1]):
            other = await self._by_new(request, copy, _outcome(copy, send))
            if not other.missing:
                request.sent = "again"
                return _answer(other)
        return _answer(answer)

    async def _by_new(self, request: Sent, copy: Sent, asking: Awaitable[Outcome]) -> Outcome:
        """What becomes of the copy at the new archive, which has the request from now on."""
        request.leave = lambda: copy.leave()
        by = request.answered_by = AnsweredBy(copy.model, self.record.versions[1])
        outcome = await asking
        request.answered_by = AnsweredBy(copy.model, copy.answered_by.version or by.version, copy.answered_by.run)
        request.repeatable &= copy.repeatable
        return outcome

    async def _unsuited(self, request: Sent, send: Ask[Sent]) -> BackendAnswer:
        """The old archive's answer to what the new one would misread. Raises Refused while the old one is not there."""
        answer = None if self._being_replaced else await _outcome(request, send)
        if answer is None or answer.missing:
            raise Refused(503, ANOTHER_ARCHIVE, retry_after_s=1)
        return _answer(answer)

    def _old_may_answer(self, request: BackendRequest, copy: BackendRequest, failure: Outcome) -> bool:
        """Whether the old archive is asked, too: not while it is taken away, nor again for what must not be sent twice."""
        if failure.missing:
            return True
        if self._being_replaced or _stays(request):
            return False
        if not request.repeatable:
            return isinstance(failure, Refused) and failure.status in (BUSY, NO_WORKER) and not copy.taken_at
        return failure.status >= 500 or _no_place(failure) or (isinstance(failure, BackendAnswer) and not failure.good)

    async def _counted(self, group: Which | None, request: Sent, send: Ask[Sent]) -> Outcome:
        """What becomes of it, counted in the group that it is in."""
        started = self._clock()
        outcome = await _outcome(request, send)
        if group:
            self._count(group, outcome, self._clock() - started)
        return outcome

    def _count(self, group: Which, outcome: Outcome, seconds: float) -> None:
        if _no_place(outcome):
            self.comparison.refused(group)
        elif outcome.status >= 500 and not isinstance(outcome, Asleep):  # which few ask, whatever it is like
            self.comparison.failed(group)
        elif isinstance(outcome, BackendAnswer):
            self.comparison.answered(group, seconds, self.record.shadow or SAME_LOAD[0] <= self.share <= SAME_LOAD[1])

    async def _shadowed(self, request: Sent, send: Ask[Sent]) -> BackendAnswer:
        """The old archive's answer. Once the client has it, the new one is asked as well, and both are compared as a pair."""
        started = self._clock()
        answer = await _outcome(request, send)
        if self.chosen(request) and not request.suits(self.record.new):
            self.unsuited += 1
        elif self.chosen(request):
            copy = request.to_model(self.record.new)
            if request.repeatable and copy.repeatable:
                self._copy(copy, answer, self._clock() - started, send)
            else:
                self.uncopied += 1
        return _answer(answer)

    def _copy(self, copy: Sent, answer: Outcome, seconds: float, send: Ask[Sent]) -> None:
        if len(self._copies) >= SHADOWS or not copy.has_place() or not copy.kept_apart():
            return
        copy.way = copy.seen = None  # its client's request has ended: what happens from here on is no part of its way

        async def compare() -> None:
            started = self._clock()
            try:
                other = await _outcome(copy, send)
            except ClientGone:
                return
            self._count("old", answer, seconds)
            self._count("new", other, self._clock() - started)
            if isinstance(answer, BackendAnswer) and isinstance(other, BackendAnswer):
                self.compared += 1
                small = max(len(answer.body), len(other.body)) <= LARGE_BYTES
                same = _same(answer, other) if small else await asyncio.to_thread(_same, answer, other)
                self.differing += not same

        task = asyncio.create_task(compare())
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)
        task.add_done_callback(lambda _: copy.release())

    def _turn_window(self) -> None:
        """Close the window that is over. Of two that have the same load the new one must not refuse more."""
        self.comparison.turn(refusals=self.record.shadow or self.share <= SAME_LOAD[1])

    def shown(self) -> dict[str, Any]:
        """What `slotwise rollout` reads in /status. counted_by: which windows these are, for a new gateway counts anew."""
        self._turn_window()
        keys = ("model", "new", "phase", "percent", "shadow", "step", "interrupted")
        kept = {key: getattr(self.record, key) for key in keys}
        counts = {key: getattr(self, key) for key in ("compared", "differing", "unsuited", "uncopied")}
        whose = {"owner": self.record.pid, "counted_by": self.comparison.id}
        return {**kept, **whose, "windows": self.comparison.windows, **counts}


class Rollouts:
    """Every roll-out that goes on, by its model."""

    def __init__(self) -> None:
        self.by_model: dict[str, Canary] = {}

    def follow(self, records: Iterable[RolloutRecord]) -> None:
        """Start, go on with, or end what the records say."""
        now: dict[str, Canary] = {}
        for record in records:
            canary = self.by_model.get(record.model)
            if canary is None or (canary.record.pid, canary.record.new) != (record.pid, record.new):
                canary = Canary(record)
            else:
                canary.follow(record)
            now[record.model] = canary
        self.by_model = now

    def of(self, request: BackendRequest) -> Canary | None:
        """The roll-out of the model that a request is for."""
        return self.by_model.get(request.model)

    def stand_ins(self, models: Mapping[str, LiveModel]) -> dict[str, LiveModel]:
        """The new archive's model, by the name of each one that is rolled out and has no READY worker."""
        found = {}
        for model, canary in self.by_model.items():
            new = models.get(canary.record.new)
            there = model in models and models[model].ready_workers > 0
            if new is not None and new.ready_workers > 0 and not there:
                found[model] = new
        return found

    def shown(self) -> list[dict[str, Any]]:
        """All of them, for /status."""
        return [canary.shown() for canary in self.by_model.values()]


def _stays(request: BackendRequest) -> bool:
    """Whether no part of its answer may be from an archive that is only tried."""
    return request.pieces is not None or request.one_archive


def _bucket(request: BackendRequest) -> int:
    return zlib.crc32((request.record_of or request.identity).encode()) % BUCKETS


async def _outcome(request: Sent, send: Ask[Sent]) -> Outcome:
    try:
        return await send(request)
    except Refused as refused:
        return refused


def _answer(outcome: Outcome) -> BackendAnswer:
    """The same. Raises Refused."""
    if isinstance(outcome, Refused):
        raise outcome
    return outcome


def _no_place(outcome: Outcome) -> bool:
    busy = outcome.status == BUSY and (isinstance(outcome, Refused) or not outcome.from_slot)
    return busy or outcome.overloaded


def _same(one: BackendAnswer, other: BackendAnswer) -> bool:
    """Whether two answers say the same; numbers may differ in the third digit, as kernels do."""
    return one.status == other.status and (one.body == other.body or agree(parsed(one.body), parsed(other.body), NEAR))
