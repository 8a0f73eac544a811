"""One random history of a model's queue: requests, workers that die, hang, fall silent or lie, and what must hold at its end.

Everything follows from the seed, so a history that fails is run again with one line (see test_histories.py).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused
from slotwise.backends.local import model_queue
from slotwise.backends.local.model_queue import ModelQueue
from slotwise.backends.local.queue_members import BatchWorker, LyingWorker, WaitingRequest
from slotwise.backends.priorities import PATIENCE
from slotwise.frontend.admission.keys import MOST_PRIORITY

RESPONSE_S = 20.0
LATEST_S = 2 * model_queue.LOOK_S  # after its deadline a request is refused within
LONG_S = 10_000.0
Level = tuple[int, bool]  # priority; whether it is not set aside
LEVELS = [(priority, in_time) for priority in range(-MOST_PRIORITY, MOST_PRIORITY + 1) for in_time in (False, True)]
SENDERS = {"a": (1, 0), "b": (1, 0), "c": (3, 0), "d": (1, 1)}  # weight and priority


@dataclass
class SimRequest(BackendRequest):
    """A request of a history. kind: good, kills, hangs, dead (its worker's engine fails for good).

    passed: how many of each sender have gone since it was its own sender's next; in time, and set aside.
    """

    kind: str = "good"
    sent_with: list[int] = field(default_factory=list)  # how many were in each batch that it was part of
    lost: int = 0  # how many workers ended that had it in hand; those that were killed together are one
    lost_with_others: bool = False
    passed: Counter[tuple[str, bool]] = field(default_factory=Counter)
    convicted: int = 0
    hung_up: bool = False

    def convict(self) -> None:
        self.convicted += 1

    def hang_up(self) -> None:
        """Its client goes, and its front says so."""
        self.hung_up = isinstance(self.leave, partial)  # its queue has it by then
        self.leave()

    @property
    def own_answer(self) -> bytes:
        return b"answer to " + self.body


class SimWorker:
    """A worker as the queue sees one. What it does with a batch is random, but for what the requests in it do to it."""

    def __init__(self, history: History, lies: str = "") -> None:
        self.history, self.lies = history, lies
        self.seen = BatchWorker(self.send, self.end, self.cancel)
        self.alive, self.stopped = True, False
        self.cancelled: set[int] = set()
        self.beat()

    def cancel(self, request_id: int) -> None:
        """Nobody wants that answer: what has not begun is not run."""
        one = self.seen.in_hand.get(request_id)
        if one is None or request_id in self.cancelled or one.deaths:
            self.history.problems.append(f"request {request_id} is cancelled twice, or under suspicion, or not in hand")
        elif one.open and not one.request.hung_up:  # type: ignore[attr-defined]
            self.history.problems.append(f"{one.request.identity} is cancelled although somebody waits for it")
        self.cancelled.add(request_id)

    def beat(self) -> None:
        if self.alive and not self.stopped:
            self.seen.heard_at = self.history.loop.time()
            self.history.loop.call_later(1.0, self.beat)

    def send(self, batch: Sequence[WaitingRequest]) -> None:
        history, chance = self.history, self.history.random.random
        history.check_batch(batch)
        kinds = {one.request.kind for one in batch}
        took_s = history.random.choice(history.took_s)
        if "kills" in kinds or chance() < history.deaths:
            history.loop.call_later(took_s, self.die)
        elif "hangs" in kinds:
            pass
        elif chance() < history.stops:
            self.stopped = True
        elif "dead" in kinds:
            history.loop.call_later(took_s, self.answer, batch, True)
        else:
            history.loop.call_later(took_s, self.answer, batch, False)

    def answer(self, batch: Sequence[WaitingRequest], dead: bool) -> None:
        """Answer one by one, in any order; with a dead engine some are not computed."""
        if not self.alive:
            return
        history, queue = self.history, self.history.queue
        order = history.random.sample(list(batch), len(batch))
        try:
            for one in order:
                if self.lies == "another's":
                    queue.answered(self.seen, one.id + 1000, good(one))
                if self.lies == "forgets" and one is order[-1]:
                    break
                status = 503 if dead and (one.request.kind == "dead" or history.random.random() < 0.5) else 200
                if one.id in self.cancelled and status == 200 and history.random.random() < 0.5:
                    status = 504  # it had not begun
                elif self.is_unwanted(one) and one.id not in self.cancelled:
                    history.problems.append(f"{one.request.identity} is not cancelled")
                queue.answered(self.seen, one.id, good(one, status))
                if self.lies == "twice":
                    queue.answered(self.seen, one.id, good(one))
            queue.done(self.seen, dead=dead)
            if self.lies:
                history.problems.append(f"that a worker lied ({self.lies}) is not seen")
        except LyingWorker:
            self.end("it lied")
        if dead:
            history.loop.call_later(0.01, self.die)
        elif self.seen.retiring:
            self.die()

    def is_unwanted(self, one: WaitingRequest) -> bool:
        """Whether the queue knows that nobody waits for it, and need not find out whether it ends workers."""
        gone = one.request.hung_up or one not in self.history.queue.open_requests  # type: ignore[attr-defined]
        return bool(gone) and not one.deaths

    def killed(self) -> None:
        """With all the others, by something that no request has to do with."""
        self.die(with_others=True)

    def end(self, why: str) -> None:
        if self.alive:
            self.alive = False
            self.history.loop.call_later(0.01, self.gone)

    def die(self, with_others: bool = False) -> None:
        if self.alive:
            self.alive = False
            self.gone(with_others)

    def gone(self, with_others: bool = False) -> None:
        for one in self.seen.batch:
            had = one.id in self.seen.in_hand or any(one is held for held, _ in self.seen.held)
            if had and not (with_others and one.request.lost_with_others):
                one.request.lost += 1
                one.request.lost_with_others |= with_others
        self.history.members.pop(self, None)
        self.history.queue.ended(self.seen)
        self.history.loop.call_later(self.history.random.choice((0.1, 1.0, 5.0)), self.history.start_worker)


def level_of(one: WaitingRequest) -> Level:
    """Who is of a higher one goes first."""
    return one.request.priority, not one.aside


def good(one: WaitingRequest, status: int = 200) -> BackendAnswer:
    return BackendAnswer(status, [], one.request.own_answer)  # type: ignore[attr-defined]


class History:
    """One history. problems: what did not hold. senders: their weights and priorities."""

    senders = SENDERS
    requests, leavers = (20, 40), 4  # how many come, how many leave
    target_s = 0.5
    took_s: tuple[float, ...] = (0.001, 0.01, 0.3, 2.0)

    def __init__(self, seed: int, queue: type[ModelQueue] = ModelQueue) -> None:
        self.random = random.Random(seed)
        self.kind_of_queue = queue
        self.batch_size = self.random.choice((1, 2, 4, 8))
        self.deaths, self.stops = self.random.choice((0.0, 0.05)), self.random.choice((0.0, 0.03))
        self.linger = self.random.choice(("free", "exact", "auto", "advise"))
        self.job_queue_size = self.random.choice((1000, 1000, 5))
        self.problems: list[str] = []
        self.outcomes: dict[str, list[str]] = {}
        self.over = False
        self.members: dict[SimWorker, None] = {}  # in their order
        self.past, self.since = (
            Counter[Level](),
            Counter[Level](),
        )  # how many went past each level: while it waits; since its last

    async def run(self) -> list[str]:
        """Let it happen; returns what did not hold."""
        self.loop = asyncio.get_running_loop()
        self.queue = self.kind_of_queue(self.batch_size, 0.05, RESPONSE_S, self.job_queue_size, self.linger)
        self.queue.dispatcher.target_s = self.target_s
        for _ in range(self.random.randint(1, 3)):
            self.start_worker()
        requests = [self.request(i) for i in range(self.random.randint(*self.requests))]
        requests[0].kind = "kills"
        requests[1].deadline = 0.5  # one at least
        clients = [asyncio.ensure_future(self.client(i, one)) for i, one in enumerate(requests)]
        leavers = self.random.sample(range(2, len(clients)), self.leavers)
        for leaver in leavers:
            leave = clients[leaver].cancel if leaver % 2 else requests[leaver].hang_up
            self.loop.call_later(self.random.choice((0.1, 1.0, 10.0)) * self.random.random(), leave)
        if self.random.random() < 0.5:
            self.loop.call_later(self.random.random(), self.catastrophe)
        await asyncio.wait(clients)
        self.over = True
        await asyncio.sleep(2 * RESPONSE_S + 2 * model_queue.SILENT_S)
        for i, one in enumerate(requests):
            self.check(one, left=i in leavers)
        if self.queue.ledger.open or sum(self.queue.ledger.ended.values()) != self.queue.ledger.admitted:
            self.problems.append(f"the balance is not 0: {self.queue.ledger.open} open, {self.queue.ledger.ended}")
        return self.problems

    def start_worker(self) -> None:
        lies = self.random.choice(("twice", "another's", "forgets")) if self.random.random() < 0.1 else ""
        worker = SimWorker(self, lies)
        self.members[worker] = None
        self.queue.joined(worker.seen)

    def catastrophe(self) -> None:
        """Every worker is killed, one directly after the other."""
        for worker in list(self.members):
            self.loop.call_later(0.2 * self.random.random(), worker.killed)

    def request(self, i: int) -> SimRequest:
        """A random request: nearly all are good, and have all the time there is."""
        kind = self.random.choices(("good", "kills", "hangs", "dead"), (90, 3, 2, 3))[0]
        deadline = LONG_S if self.random.random() < 0.8 else self.random.uniform(0.1, 60)
        repeatable, sender = self.random.random() < 0.9, self.random.choice(list(self.senders))
        request = SimRequest("m", deadline, identity=f"r{i}", body=str(i).encode(), repeatable=repeatable, kind=kind)
        request.sender, (request.weight, request.priority) = sender, self.senders[sender]
        return request

    async def ask(self, request: SimRequest) -> Refused | None:
        """Wait for the answer, and look at it. Returns the refusal, where it is one."""
        outcomes, came_at = self.outcomes.setdefault(request.identity, []), self.loop.time()
        try:
            answer = await self.queue.answer(request)
            outcomes.append("answered" if answer.status == 200 else str(answer.status))
            if answer.body != request.own_answer:
                self.problems.append(f"{request.identity} got {answer.body!r}")
        except Refused as refused:
            outcomes.append(str(refused.status))
            if refused.status == 504 and self.loop.time() < request.deadline:
                self.check_early(request, came_at)
            return refused
        finally:
            late_s = self.loop.time() - max(request.deadline, came_at)
            if late_s > LATEST_S:
                self.problems.append(f"{request.identity} had to wait {late_s:.1f} s too long")
        return None

    async def client(self, i: int, request: SimRequest) -> None:
        await asyncio.sleep(self.random.choice((0.0, 0.001, 0.1, 1.0)) * self.random.random())
        refused = await self.ask(request)
        if refused is not None and refused.status == 503:
            self.check_shed(request, refused)

    def check_batch(self, batch: Sequence[WaitingRequest]) -> None:
        """What must hold of every batch that is sent."""
        if not 0 < len(batch) <= self.batch_size:
            self.problems.append(f"a batch of {len(batch)}, not of at most {self.batch_size}")
        if len(batch) > 1 and any(one.deaths for one in batch):
            self.problems.append("who had a worker die does not go alone")
        for one in batch:
            if not one.open:
                self.problems.append(f"{one.request.identity} is sent although nobody waits for it")
            if one.request.lost and not one.request.repeatable:
                self.problems.append(f"{one.request.identity} is sent twice, and must not be")
            one.request.sent_with.append(len(batch))  # type: ignore[attr-defined]

        for one in (*self.waiting(), *batch):
            self.check_aside(one)
        waited = [one for one in batch if not one.deaths]
        for i, one in enumerate(waited):
            self.check_turns(one, waited[i + 1 :])

    def waiting(self, among: Sequence[WaitingRequest] = ()) -> list[WaitingRequest]:
        """Who waits, in order of arrival. among: those that still did a moment ago."""
        every = self.queue._open.values()
        return [one for one in every if one.open and not one.deaths and (not one.taken or one in among)]

    def check_turns(self, gone: WaitingRequest, behind: Sequence[WaitingRequest]) -> None:
        """One has gone: nobody's next request waits for more than another one's weight. behind: who goes directly after it."""
        nexts: dict[tuple[str, Level], WaitingRequest] = {}
        for one in self.waiting(behind):
            nexts.setdefault((one.request.sender, level_of(one)), one)
        sender, level = gone.request.sender, level_of(gone)
        for one in nexts.values():
            request: SimRequest = one.request  # type: ignore[assignment]
            same = level_of(one) == level
            if same and request.sender == sender and one.id < gone.id:
                self.problems.append(f"{request.identity} came before {gone.request.identity}, of the same sender")
            if level_of(one) > level and self.since[level] < PATIENCE:
                self.problems.append(f"{gone.request.identity} goes before {request.identity}, whose level is higher")
            request.passed[sender, one.aside] += same
            if same and request.sender != sender and request.passed[sender, one.aside] > gone.request.weight:
                self.problems.append(f"{request.identity} waits for {request.passed[sender, one.aside]} of {sender}")
        levels = {each for _, each in nexts}
        self.past = Counter({each: self.past[each] + (each < level) for each in levels if each != level})
        self.since += Counter(each for each in LEVELS if each < level)
        self.since[level] = 0
        if any(past > PATIENCE + len(levels) for past in self.past.values()):
            self.problems.append(f"levels starve: {self.past} went past them")

    def check_aside(self, one: WaitingRequest) -> None:
        """Only "auto" sets aside, and nobody before half of the target is over."""
        if one.aside and (self.linger != "auto" or self.loop.time() - one.came_at < self.target_s / 2):
            self.problems.append(f"{one.request.identity} is set aside after {self.loop.time() - one.came_at:.3f} s")

    def check_early(self, request: SimRequest, came_at: float) -> None:
        """Who is refused before its deadline could not have been answered, by what is known of costs."""
        took_least_s = self.queue.dispatcher.cost.least(self.batch_size)  # it may have been the last place of a batch
        if request.sent_with or not took_least_s:
            self.problems.append(f"{request.identity} was refused before its deadline")
        if came_at == self.loop.time() and any(not worker.busy for worker in self.queue.workers):
            self.problems.append(f"{request.identity} was refused although a worker is free")

    def check_shed(self, request: SimRequest, refused: Refused) -> None:
        """Who has to go had most for its share, of those of the least priority."""
        waiting = self.waiting()
        if refused.retry_after_s < 1 or self.job_queue_size > 5:
            self.problems.append(
                f"{request.identity} got 503 at a queue of {len(waiting)}, Retry-After {refused.retry_after_s}"
            )
        count = Counter(one.request.sender for one in waiting)
        gave_way = "gave way" in refused.message
        own = (-request.priority, (count[request.sender] + 1) / request.weight)
        for one in waiting:
            # Who got the place has one more than it had.
            had = count[one.request.sender] - gave_way
            if (-one.request.priority, had / one.request.weight) > own:
                self.problems.append(f"{request.identity} is shed, of {own}, and not {one.request.sender}: {count}")

    def must_be_convicted(self, request: SimRequest) -> bool:
        """Whether it has ended a worker, and its front waits although its client has gone."""
        kills = request.kind == "kills" and request.hung_up and request.lost and not request.lost_with_others
        return bool(kills and request.repeatable and request.deadline == LONG_S)

    def check(self, request: SimRequest, *, left: bool) -> None:
        """What must hold of every request in the end."""
        outcomes, name = self.outcomes.get(request.identity, []), request.identity
        if len(outcomes) != 1 and not (left and not outcomes):
            self.problems.append(f"{name} has the outcomes {outcomes}")
        if self.must_be_convicted(request) and not request.convicted:
            self.problems.append(f"{name}, which kills, has hung up and is not convicted")
        if request.convicted and (request.lost < 2 or request.sent_with[-1] != 1 or request.convicted > 1):
            self.problems.append(f"{name} is convicted after {request.lost} deaths, in batches of {request.sent_with}")
        fair = ["answered"] if request.lost < 2 and (request.repeatable or not request.lost) else ["answered", "500"]
        if not request.sent_with:
            fair.append("503")
        if request.deadline == LONG_S and request.kind == "good" and not left and not set(outcomes) <= set(fair):
            self.problems.append(f"{name}, which is innocent, got {outcomes}, lost {request.lost}, {request.sent_with}")
        if (
            request.deadline == LONG_S
            and request.kind in ("kills", "hangs")
            and request.sent_with
            and not left
            and outcomes != ["500"]
        ):
            self.problems.append(f"{name}, which {request.kind}, got {outcomes}")
