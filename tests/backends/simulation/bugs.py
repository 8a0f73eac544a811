"""The queue with one bug each, as they have been made in such code: the histories must find every one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused
from slotwise.backends.local.model_queue import ModelQueue
from slotwise.backends.local.queue_members import BatchWorker, WaitingRequest
from slotwise.backends.local.waiting_line import WaitingLine
from slotwise.frontend.admission.keys import MOST_PRIORITY


class NoIdCheck(ModelQueue):
    """An answer with a wrong id goes to whoever waits longest."""

    def answered(self, worker: BatchWorker, request_id: int, answer: BackendAnswer) -> None:
        if request_id not in worker.in_hand and worker.in_hand:
            request_id = next(iter(worker.in_hand))
        super().answered(worker, request_id, answer)


class SecondAnswerIsTaken(ModelQueue):
    """An answer to what is not in hand is passed over in silence."""

    def answered(self, worker: BatchWorker, request_id: int, answer: BackendAnswer) -> None:
        if request_id in worker.in_hand:
            super().answered(worker, request_id, answer)


class LostRequeue(ModelQueue):
    """What a dead worker had in hand is forgotten."""

    def ended(self, worker: BatchWorker) -> None:
        super().ended(worker)
        self.suspects.clear()


class OneTooMany(ModelQueue):
    """A batch takes one request more than it may."""

    def _first_waiting(self, worker: BatchWorker, now: float) -> list[WaitingRequest]:
        batch = super()._first_waiting(worker, now)
        return [*batch, self.waiting.take(one)] if batch and (one := self.waiting.first()) else batch


class NoDeadlines(ModelQueue):
    """Nobody looks at deadlines."""

    def _look(self) -> None:
        kept = [(one, one.request.deadline) for one in self._open.values()]
        for one, _ in kept:
            one.request.deadline = float("inf")
        super()._look()
        for one, deadline in kept:
            one.request.deadline = deadline


class NoCalm(ModelQueue):
    """What a dead worker had in hand goes at once to another one, which the same event may be killing."""

    def ended(self, worker: BatchWorker) -> None:
        super().ended(worker)
        for one in self.suspects:
            one.calm_at = 0.0


class SuspectsAmongOthers(ModelQueue):
    """What a dead worker had in hand waits again, beside everybody else."""

    def ended(self, worker: BatchWorker) -> None:
        super().ended(worker)
        for one in self.suspects:
            self.waiting.append(one)
        self.suspects.clear()


class ConvictedAtOnce(ModelQueue):
    """The first death is enough."""

    def ended(self, worker: BatchWorker) -> None:
        for one in worker.in_hand.values():
            one.deaths += 1
        super().ended(worker)


class SentTwice(ModelQueue):
    """Nobody asks whether a request may be sent again."""

    def ended(self, worker: BatchWorker) -> None:
        kept = [(one, one.request.repeatable) for one in worker.in_hand.values()]
        for one, _ in kept:
            one.request.repeatable = True
        super().ended(worker)
        for one, repeatable in kept:
            one.request.repeatable = repeatable


class HangsForEver(ModelQueue):
    """Nobody looks at workers that take too long or are silent."""

    def _look_at(self, worker: BatchWorker, now: float) -> None:
        """Leave it."""


class StaysIdle(ModelQueue):
    """A worker that is done gets the next batch only when another request comes."""

    def done(self, worker: BatchWorker, *, dead: bool) -> None:
        dispatching, self._dispatching = self._dispatching, True
        super().done(worker, dead=dead)
        self._dispatching = dispatching


class MissingAnswers(ModelQueue):
    """A batch may be over although answers are missing."""

    def done(self, worker: BatchWorker, *, dead: bool) -> None:
        worker.in_hand.clear()
        super().done(worker, dead=dead)


class NotComputedIsAnAnswer(ModelQueue):
    """Whom a dead engine has not computed gets its 503."""

    def done(self, worker: BatchWorker, *, dead: bool) -> None:
        for one, answer in worker.held:
            if one.open:
                one.answer.set_result(answer)
        super().done(worker, dead=dead)


class NoBalance(ModelQueue):
    """Who was refused is never closed."""

    def _close(self, one: WaitingRequest, outcome: str) -> None:
        if outcome != "refused":
            super()._close(one, outcome)  # type: ignore[arg-type]


class NoTurns(ModelQueue):
    """First come, first served, whoever has hundreds waiting."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.waiting = self.dispatcher.waiting = FirstCome()


class FirstCome(WaitingLine):
    def append(self, one: WaitingRequest) -> None:
        request, one.request = one.request, replace(one.request, sender="")
        super().append(one)
        one.request = request

    def take(self, one: WaitingRequest) -> WaitingRequest:
        turns = self._turns[one.level]
        return self._pop(turns, turns[""])


class GreedyTurns(ModelQueue):
    """A turn ends only when its sender has nothing left."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.waiting = self.dispatcher.waiting = WholeTurns()


class WholeTurns(WaitingLine):
    def append(self, one: WaitingRequest) -> None:
        super().append(one)
        self._turns[one.level][one.request.sender].left = 1000


class _Late(ModelQueue):
    """A queue with another line."""

    line: type[WaitingLine]

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.waiting = self.dispatcher.waiting = self.line()


class LateStarve(_Late):
    """Who is set aside waits until nobody else of its priority does."""

    class line(WaitingLine):
        def first(self) -> WaitingRequest | None:
            if self._priorities.overdue not in (None, *range(-MOST_PRIORITY, MOST_PRIORITY + 1)):
                self._priorities.overdue = None
            return super().first()


class LateAreLost(_Late):
    """Who is set aside is forgotten."""

    class line(WaitingLine):
        def append(self, one: WaitingRequest) -> None:
            if not one.aside:
                super().append(one)


class LateWithoutTurns(_Late):
    """Those that are set aside go as they came, whoever has hundreds among them."""

    class line(FirstCome):
        def append(self, one: WaitingRequest) -> None:
            (super().append if one.aside else super(FirstCome, self).append)(one)

        def take(self, one: WaitingRequest) -> WaitingRequest:
            return super().take(one) if one.aside else super(FirstCome, self).take(one)


class LateBehindAll(_Late):
    """Who is set aside goes behind all others, of lower priorities, too."""

    class line(WaitingLine):
        def first(self) -> WaitingRequest | None:
            kept, aside = self._turns, {level for level in self._turns if level % 1}
            self._turns = {**{level: kept[level] for level in kept if level not in aside}, **kept}
            one = super().first()
            self._turns = kept
            return one


class AllAreLate(_Late):
    """Everybody that waits is set aside."""

    class line(WaitingLine):
        def set_aside(self, before: float) -> None:
            super().set_aside(float("inf"))


class WhoComesIsFirst(_Late):
    """A sender that comes goes before all others, whoever has gone since they had a turn."""

    class line(WaitingLine):
        def append(self, one: WaitingRequest) -> None:
            super().append(one)
            turns, sender = self._turns[one.level], one.request.sender
            if len(turns[sender].requests) == 1:
                turns.move_to_end(sender, last=False)


class ShedsWhoComes(ModelQueue):
    """Where the queue is full the newcomer goes, however little it has."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.dispatcher.make_room = self.refuse  # type: ignore[method-assign]

    def refuse(self, request: BackendRequest, workers: int) -> None:
        if len(self.waiting) >= self.dispatcher.job_queue_size:
            raise Refused(503, "full", retry_after_s=1)


class RefusesThoughFree(ModelQueue):
    """Who seems too late is refused although a worker is free: what was learned wrong stays wrong."""

    async def answer(self, request: BackendRequest) -> BackendAnswer:
        if request.deadline - self.loop.time() < 1.0:
            raise Refused(504, "late")
        return await super().answer(request)


class NeverCancels(ModelQueue):
    """A worker is never told that nobody wants an answer."""

    def _cancel(self, one: WaitingRequest) -> None:
        """Leave it."""


class CancelsSuspects(ModelQueue):
    """Who had a worker die is cancelled too when its client hangs up: so it is never known."""

    def _cancel(self, one: WaitingRequest) -> None:
        for worker in self.workers:
            if one.id in worker.in_hand and not one.cancelled:
                one.cancelled = True
                worker.cancel(one.id)


class CancelEndsIt(ModelQueue):
    """Who hangs up is closed although a worker has it: who ends workers is never convicted."""

    def _cancel(self, one: WaitingRequest) -> None:
        super()._cancel(one)
        if one.cancelled and one.left:
            one.refuse(499, "its client has gone")


BUGS = [
    NoIdCheck, SecondAnswerIsTaken, LostRequeue, OneTooMany, NoDeadlines, NoCalm,
    SuspectsAmongOthers, ConvictedAtOnce, SentTwice,
    HangsForEver, StaysIdle, MissingAnswers, NotComputedIsAnAnswer, NoBalance,
    NeverCancels, CancelsSuspects, CancelEndsIt,
    NoTurns, GreedyTurns, ShedsWhoComes, RefusesThoughFree,
]  # fmt: skip
LATE_BUGS = [LateStarve, LateAreLost, LateWithoutTurns, LateBehindAll, AllAreLate, WhoComesIsFirst]
