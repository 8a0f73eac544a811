"""One random history of a model that streams: pieces, deaths, cancels, refusals, lies, and what must hold at its end.

Everything follows from the seed, as in history.py.
"""

from __future__ import annotations

import asyncio
import random

from slotwise.backends.exchange import Refused
from slotwise.backends.local import model_queue
from slotwise.backends.local.queue_members import WaitingRequest
from slotwise.backends.local.stream_queue import StreamQueue
from tests.backends.simulation.streaming_members import LIES, Reader, StreamingRequest, StreamingWorker

RESPONSE_S = 20.0
LATEST_S = 2 * model_queue.LOOK_S
LONG_S = 10_000.0
MOST_ENDED = 3  # workers that one body ends


class StreamingHistory:
    """One history. problems: what did not hold."""

    def __init__(self, seed: int, queue: type[StreamQueue] = StreamQueue) -> None:
        self.random, self.kind_of_queue = random.Random(seed), queue
        self.slots = self.random.choice((1, 2, 4))
        self.deaths, self.stops = self.random.choice((0.0, 0.02)), self.random.choice((0.0, 0.01))
        self.liars = self.random.random() < 0.3
        self.problems: list[str] = []
        self.outcomes: dict[str, list[str]] = {}
        self.members: dict[StreamingWorker, None] = {}

    async def run(self) -> list[str]:
        """Let it happen; returns what did not hold."""
        self.loop = asyncio.get_running_loop()
        self.queue = self.kind_of_queue(4, 0.05, RESPONSE_S, 1000)
        for _ in range(self.random.randint(1, 3)):
            self.start_worker()
        requests = [self.request(i) for i in range(self.random.randint(15, 30))]
        requests[0].kind = "kills"
        clients = [asyncio.ensure_future(self.client(one)) for one in requests]
        leavers = self.random.sample(range(len(clients)), 5)
        for leaver in leavers:
            leave = clients[leaver].cancel if self.random.random() < 0.4 else requests[leaver].leave
            if leaver % 2:
                leave = self._hang_up(requests[leaver])  # type: ignore[assignment]
            self.loop.call_later(self.random.choice((0.1, 1.0, 10.0)) * self.random.random(), leave)
        if self.random.random() < 0.3:
            self.loop.call_later(self.random.random(), lambda: [worker.die() for worker in list(self.members)])
        await asyncio.wait(clients)
        self.deaths = self.stops = 0.0
        await asyncio.sleep(2 * RESPONSE_S + 2 * model_queue.SILENT_S)
        for i, one in enumerate(requests):
            self.check(one, left=i in leavers)
        ledger = self.queue.ledger
        if ledger.open or sum(ledger.ended.values()) != ledger.admitted:
            self.problems.append(f"the balance is not 0: {ledger.open} open, {ledger.ended}")
        for worker in self.members:
            if worker.alive and (worker.held or worker.seen.in_hand or worker.seen.headers or worker.seen.trying):
                self.problems.append(f"slots are not free: {list(worker.held)}, {list(worker.seen.in_hand)}")
        return self.problems

    def _hang_up(self, request: StreamingRequest) -> object:
        return lambda: request.leave()  # what the queue has put there by then

    def start_worker(self) -> None:
        lie = self.random.choice(("any", *LIES)) if self.liars and self.random.random() < 0.3 else ""
        worker = StreamingWorker(self, lie)
        self.members[worker] = None
        self.queue.joined(worker.seen)

    def request(self, i: int) -> StreamingRequest:
        kind = self.random.choices(("good", "kills", "hangs", "dead", "fails"), (85, 5, 2, 3, 5))[0]
        length = self.random.choice((0, 1, 3, 10, 40))
        reader = Reader(self.random.randrange(length + 1) if self.random.random() < 0.05 else -1)
        one = StreamingRequest(
            "m",
            LONG_S if self.random.random() < 0.85 else self.random.uniform(0.1, 30),
            identity=f"r{i}",
            body=b"%d" % i,
            repeatable=self.random.random() < 0.9,
            kind=kind,
            length=length,
            at=self.random.randint(0, length),
            reader=reader,
        )
        one.pieces = reader if self.random.random() < 0.8 else None
        return one

    async def client(self, request: StreamingRequest) -> None:
        await asyncio.sleep(self.random.choice((0.0, 0.001, 0.1, 1.0)) * self.random.random())
        outcomes, came_at = self.outcomes.setdefault(request.identity, []), self.loop.time()
        try:
            answer = await self.queue.answer(request)
            outcomes.append("answered" if answer.status == 200 else str(answer.status))
            if answer.status == 200 and (request.reader.got != request.own if request.pieces else answer.body != request.whole):
                self.problems.append(f"{request.identity} got {request.reader.got} {answer.body!r}")
        except Refused as refused:
            outcomes.append(str(refused.status))
            if refused.status == 504 and self.loop.time() < request.deadline:
                self.problems.append(f"{request.identity} was refused before its deadline")
        if request.reader.got != request.own[: len(request.reader.got)]:
            self.problems.append(f"{request.identity} got {request.reader.got}")
        late_s = self.loop.time() - max(request.deadline, came_at)
        if late_s > LATEST_S:
            self.problems.append(f"{request.identity} had to wait {late_s:.1f} s too long")

    def check_joining(self, worker: StreamingWorker, one: WaitingRequest) -> None:
        """What must hold of every request that a worker gets."""
        request, seen = one.request, worker.seen
        assert isinstance(request, StreamingRequest)
        if not one.open:
            self.problems.append(f"{request.identity} is sent although nobody waits for it")
        if len(seen.in_hand) > self.slots + max(1, self.slots // 4):
            self.problems.append(f"a worker with {self.slots} slots has {len(seen.in_hand)}")
        if request.lost and not request.repeatable:
            self.problems.append(f"{request.identity} is sent twice, and must not be")
        if seen.trying not in (None, one):
            self.problems.append(f"{request.identity} joins one that is under suspicion")
        if one.deaths and seen.trying is not one:
            self.problems.append(f"{request.identity} joins as if no worker had ended")
        if one.sent != request.own[: len(one.sent)] or (request.pieces and not one.left and one.sent != request.reader.got):
            self.problems.append(f"{request.identity} is to go on after {one.sent}")
        if any(other.deaths > 1 and other is not one and other is seen.trying for other in seen.in_hand.values()):
            self.problems.append(f"{request.identity} joins one that is accused")

    def check(self, request: StreamingRequest, *, left: bool) -> None:
        """What must hold of every request in the end."""
        outcomes, name = self.outcomes.get(request.identity, []), request.identity
        if len(outcomes) != 1 and not (left and not outcomes):
            self.problems.append(f"{name} has the outcomes {outcomes}")
        if request.ended_workers > MOST_ENDED:
            self.problems.append(f"{name}, which {request.kind}, has ended {request.ended_workers} workers")
        if request.convicted > 1 or (request.convicted and (request.lost < 2 or request.company > 1)):
            self.problems.append(
                f"{name} is convicted {request.convicted} times after {request.lost} deaths, {request.company}"
            )
        refuses = request.pieces is not None and 0 <= request.reader.refuses_at < request.length
        if request.deadline != LONG_S or left or refuses:
            return
        fair = {"good": ["answered"], "fails": ["400"], "kills": ["500"], "hangs": ["500"], "dead": ["500"]}[request.kind]
        if request.lost and (not request.repeatable or request.convicted):  # alone where a worker ended by chance
            fair = [*fair, "500"]
        if not set(outcomes) <= set(fair):
            self.problems.append(f"{name}, which is {request.kind}, got {outcomes}, lost {request.lost}")
