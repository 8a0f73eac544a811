"""One random history of sequences: clients that pipeline, leave, pause and come back, workers that die: whose state answers?

A worker keeps a list for each id that it sees, and answers with the whole of it. So an answer tells all that it was made of.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence as Several

from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused
from slotwise.backends.local.queue_members import BatchWorker, WaitingRequest
from slotwise.backends.local.sequence_queue import SequenceLimits, SequenceQueue

ID, START, END = SequenceLimits().headers
OWNERS = ("key a", "key b", "10.0.0.1")
REFUSALS = {410, 499, 500, 503, 504}


class StatefulWorker:
    """A worker that keeps what it was sent, by the id that it sees."""

    def __init__(self, history: SequenceHistory) -> None:
        self.history, self.alive = history, True
        self.seen = BatchWorker(self.send, self.end)
        self.state: dict[str, list[str]] = {}
        self.running = False
        self.beat()

    def beat(self) -> None:
        if self.alive:
            self.seen.heard_at = self.history.loop.time()
            self.history.loop.call_later(1.0, self.beat)

    def send(self, batch: Several[WaitingRequest]) -> None:
        history = self.history
        ids = [one.request.headers[ID] for one in batch]
        if self.running or len(set(ids)) < len(ids) or len(ids) > history.batch_size:
            history.problems.append(f"{ids} go together")
        self.running = True
        took_s = history.random.choice((0.001, 0.1, 1.5))
        if history.random.random() < history.deaths:
            history.loop.call_later(took_s, self.die)
        else:
            history.loop.call_later(took_s, self.answer, batch)

    def answer(self, batch: Several[WaitingRequest]) -> None:
        if not self.alive:
            return
        self.running = False
        for one in batch:
            headers, body = one.request.headers, one.request.body.decode()
            if self.history.random.random() < 0.05:  # its guard does not give it to the handler
                self.history.queue.answered(self.seen, one.id, BackendAnswer(400, [], b""))
                continue
            if headers.get(START) == "true":
                self.state[headers[ID]] = []
            kept = self.state.setdefault(headers[ID], [])
            kept.append(body)
            sent = [(ID.encode(), headers[ID].encode())] if self.history.random.random() < 0.5 else []
            if headers.get(END) == "true":
                del self.state[headers[ID]]
            self.history.queue.answered(self.seen, one.id, BackendAnswer(200, sent, json.dumps(kept).encode()))
        self.history.queue.done(self.seen, dead=False)

    def end(self, why: str) -> None:
        self.history.problems.append(f"a worker is ended: {why}")

    def die(self) -> None:
        self.alive = False
        self.history.queue.ended(self.seen)
        self.history.loop.call_later(0.2, self.history.start_worker)


class SequenceHistory:
    """Everything follows from the seed."""

    def __init__(self, seed: int, queue: type[SequenceQueue] = SequenceQueue) -> None:
        self.random, self.kind = random.Random(seed), queue
        chance = self.random
        self.deaths = chance.choice((0.0, 0.05, 0.2))
        self.batch_size, self.workers = chance.choice((1, 2, 4)), chance.choice((1, 2, 3))
        idle_s, total_s = chance.choice((2.0, 5.0)), chance.choice((0.0, 20.0))
        self.limits = SequenceLimits(chance.choice((2, 4, 20)), chance.choice((1, 3)), idle_s, total_s)
        self.problems: list[str] = []
        self.answered = 0

    def start_worker(self) -> None:
        self.queue.joined(StatefulWorker(self).seen)

    async def run(self) -> list[str]:
        """What did not hold."""
        self.loop = asyncio.get_running_loop()
        self.queue = self.kind(self.batch_size, limits=self.limits)
        for _ in range(self.workers):
            self.start_worker()
        named = [(owner, f"s{i}") for owner in OWNERS for i in range(3)]
        await asyncio.gather(*(self.client(*self.random.choice(named[i::3]), f"{i}") for i in range(3)))
        await asyncio.gather(*(self.client(owner, name, "c") for owner, name in named))
        await asyncio.sleep(3)
        if self.queue.of or self.queue.ledger.open:
            self.problems.append(f"something is left: {self.queue.of}")
        if len(self.queue.sequences) > self.limits.most:
            self.problems.append(f"{len(self.queue.sequences)} sequences")
        return self.problems

    async def client(self, owner: str, name: str, who: str) -> None:
        """One after the other, or several at once."""
        had: list[str] = []  # bodies since the start that were answered, and are in the state
        asked: list[str] = []  # all of them, in order
        for turn in range(self.random.randrange(2, 9)):
            begins = turn == 0 or self.random.random() < 0.1
            if begins:
                had.clear()
                asked.clear()
            bodies = [f"{owner} {name} {who} {turn}.{k}" for k in range(self.random.choice((1, 1, 2, 4)))]
            asked += bodies
            ends = self.random.random() < 0.1
            tasks = []
            for k, body in enumerate(bodies):
                tasks.append(
                    asyncio.ensure_future(self.ask(owner, name, body, begins and not k, ends and k == len(bodies) - 1))
                )
                await asyncio.sleep(0)
            for body, answer in zip(bodies, await asyncio.gather(*tasks), strict=True):
                if answer is not None:
                    self.check(body, json.loads(answer.body), had, asked)
                    had.append(body)
                    told = [value.decode() for key, value in answer.headers if key == ID.encode()]
                    if told not in ([], [name]):
                        self.problems.append(f"{body} is told the id {told}")
            await asyncio.sleep(self.random.choice((0.0, 0.1, 1.0, 6.0)))

    def check(self, body: str, state: list[str], had: list[str], asked: list[str]) -> None:
        """What an answer was made of: the start, all that was answered since, nothing of anybody else, in order."""
        self.answered += 1
        places = [asked.index(one) if one in asked else -1 for one in state]
        if -1 in places or places != sorted(set(places)) or places[0] != 0 or state[-1] != body:
            self.problems.append(f"{body} is answered from {state}")
        if not set(had) <= set(state):
            self.problems.append(f"{body} is answered without {set(had) - set(state)}")

    async def ask(self, owner: str, name: str, body: str, begins: bool, ends: bool) -> BackendAnswer | None:
        headers = {ID: name, **({START: "true"} if begins else {}), **({END: "True"} if ends else {})}
        patience_s = self.random.choice((0.5, 5.0, 60.0))
        request = BackendRequest("m", self.loop.time() + patience_s, body, headers=headers, body=body.encode(), sender=owner)
        if self.random.random() < 0.1:
            self.loop.call_later(self.random.choice((0.0, 0.05, 1.0)), lambda: request.leave())
        try:
            answer = await self.queue.answer(request)
            return answer if answer.status < 400 else None
        except Refused as refused:
            if refused.status not in REFUSALS:
                self.problems.append(f"{body}: {refused.status} {refused.message}")
            return None
