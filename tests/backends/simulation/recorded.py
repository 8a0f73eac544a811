"""A history that a worker's death wrote, once more under the virtual clock, with all that must hold of any history.

python -m tests.backends.simulation.recorded FILE     prints what did not hold, and how many batches were formed as they were

Requests, deaths, answers and clients that left come as they came; what the queue makes of them it decides again. What comes
after the file's end is tried twice: nobody kills again, and whoever had a worker die does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slotwise.backends.exchange import BackendAnswer
from slotwise.backends.local.model_queue import ModelQueue
from slotwise.backends.local.queue_history import VERSION
from slotwise.backends.local.queue_members import BatchWorker, WaitingRequest
from slotwise.backends.local.waiting_line import WaitingLine
from tests.backends.simulation.history import History, SimRequest
from tests.backends.simulation.virtual_loop import NothingLeft, VirtualLoop

ROUNDED_S = 1e-6  # as times in the file are
START_S, ANSWER_S = 0.1, 0.01  # after the end: until a new worker is there, and what a batch takes


class RecordedLoop(VirtualLoop):
    """What is ready runs in its order: as it did."""

    def __init__(self) -> None:
        super().__init__(0)
        self._random.shuffle = lambda ready: None  # type: ignore[method-assign]


class RecordedWorker:
    """A worker that does what the file says, and answers everything once the file is at its end."""

    def __init__(self, history: RecordedHistory, number: int) -> None:
        self.history, self.number = history, number
        self.seen = BatchWorker(self.send, self.end, heard_at=float("inf"))
        self.alive = True
        history.members[number] = self
        history.queue.joined(self.seen)
        self.seen.heard_at = float("inf")

    def send(self, batch: Sequence[WaitingRequest]) -> None:
        history = self.history
        history.check_batch(batch)
        history.formed.append([one.id for one in batch])
        if history.over:
            kills = history.kills_again and any(one.request.lost for one in batch)  # type: ignore[attr-defined]
            history.loop.call_later(ANSWER_S, self.die if kills else self.answer)

    def answer(self, missing: Sequence[int] = (), *, dead: bool = False) -> None:
        if not self.alive or not self.seen.busy:
            return
        for one in list(self.seen.in_hand.values()):
            status = 503 if self.history.numbers[one.id] in missing else 200
            self.history.queue.answered(self.seen, one.id, BackendAnswer(status, [], one.request.own_answer))  # type: ignore[attr-defined]
        self.history.queue.done(self.seen, dead=dead)

    def end(self, why: str) -> None:
        """The queue's own wish: where it is ended in the file, too, that stands there."""
        if self.history.over:
            self.history.loop.call_soon(self.die)

    def die(self, lost: Sequence[int] = ()) -> None:
        """lost: whom it had not answered; nobody says: nobody of those that it has."""
        if not self.alive:
            return
        self.alive = False
        for one in [one for one in self.seen.in_hand.values() if lost and self.history.numbers[one.id] not in lost]:
            self.history.queue.answered(self.seen, one.id, BackendAnswer(200, [], one.request.own_answer))  # type: ignore[attr-defined]
        for one in self.seen.batch:
            if one.id in self.seen.in_hand or any(one is held for held, _ in self.seen.held):
                one.request.lost += 1  # type: ignore[attr-defined]
        self.history.queue.ended(self.seen)
        if self.history.over:
            self.history.start_soon()


class RecordedHistory(History):
    """One file. same, formed_then: of so many batches so many were formed of the same requests again."""

    members: dict[int, RecordedWorker]  # type: ignore[assignment]

    def __init__(
        self, about: dict[str, Any], events: list[dict[str, Any]], queue: type[ModelQueue], *, kills_again: bool
    ) -> None:
        super().__init__(0, queue)
        self.about, self.events, self.kills_again = about, events, kills_again
        self.batch_size, self.job_queue_size = int(about["batch_size"]), int(about["job_queue_size"])
        self.formed: deque[list[int]] = deque()
        self.same = self.formed_then = 0
        self.asked: dict[int, SimRequest] = {}
        self.hung_up: set[int] = set()
        self.clients: dict[int, asyncio.Task[None]] = {}
        self.members = {}
        self.numbers: dict[int, int] = {}  # the file's of our own
        self.new_workers = 0

    async def run(self) -> list[str]:
        self.loop = asyncio.get_running_loop()
        about = self.about
        delay_s, response_s = float(about["max_batch_delay_s"]), float(about["response_timeout_s"])
        self.queue = self.kind_of_queue(self.batch_size, delay_s, response_s, 1_000_000, about["linger"])
        self.queue.dispatcher.target_s = float(about["target_s"])
        self.begin = -min([0.0, *(line["at"] for line in self.events)])
        before = [line for line in self.events if line["at"] < 0]
        await self.as_it_was(before)
        for line in self.events[len(before) :]:
            await self.until(line)
            self.happens(line)
        self.queue._dispatching = False
        self.queue._dispatch_soon()
        await self.afterwards()
        return self.problems

    async def as_it_was(self, before: list[dict[str, Any]]) -> None:
        """What the queue and its workers had when the file begins."""
        queue, held = self.queue, dict[int, list[int]]()
        joined = {line["worker"] for line in self.events if line["event"] == "joined"}
        self.hold()
        for number in sorted({line["worker"] for line in self.events if "worker" in line} - joined):
            RecordedWorker(self, number)
        for line in before:
            if line["event"] == "sent":
                held[line["worker"]] = line["ids"]
            else:
                await asyncio.sleep(self.begin + line["at"] - self.loop.time())
                self.happens(line)
        await asyncio.sleep(self.begin - self.loop.time())
        queue.dispatcher.job_queue_size = self.job_queue_size
        waiting = {self.numbers[one.id]: one for one in queue.waiting}
        queue.waiting = queue.dispatcher.waiting = WaitingLine()
        for number, ids in held.items():
            batch = [one for each in ids if (one := waiting.pop(each, None))]
            worker = self.members[number].seen
            worker.batch, worker.in_hand, worker.busy_since = batch, {one.id: one for one in batch}, self.loop.time()
            for one in batch:
                one.taken = True
                one.request.sent_with.append(len(batch))  # type: ignore[attr-defined]
        for one in waiting.values():
            queue.waiting.append(one)

    def hold(self) -> None:
        """Form no batch before the file does: what came in one turn of the loop went together."""
        self.queue._dispatching = True

    async def turn(self) -> None:
        """Form batches, once."""
        for _ in range(3):  # clients begin, and hear of their answers
            await asyncio.sleep(0)
        self.queue._dispatching = False
        self.queue._dispatch_soon()
        for _ in range(3):
            await asyncio.sleep(0)
        self.hold()

    async def until(self, line: dict[str, Any]) -> None:
        """The time of an event; where a batch was sent then, one is formed."""
        due = self.begin + line["at"] + (ROUNDED_S if line["event"] == "sent" else 0.0)
        await asyncio.sleep(max(0.0, due - self.loop.time()))
        if line["event"] == "sent" and not self.formed:
            await self.turn()

    def happens(self, line: dict[str, Any]) -> None:
        """One event of the file. What the queue decides is not done, but compared."""
        event = line["event"]
        if event == "arrived":
            self.clients[line["id"]] = self.loop.create_task(self.client(len(self.clients), self.recorded(line)))
        elif event == "joined":
            RecordedWorker(self, line["worker"])
        elif event == "answered":
            self.members[line["worker"]].answer(line.get("missing", ()), dead=line.get("dead", False))
        elif event == "died":
            self.members[line["worker"]].die(line["ids"])
        elif event == "left" and line["id"] in self.asked:
            self.hung_up.add(line["id"])
            self.asked[line["id"]].hang_up()
        elif event == "cancelled" and line["id"] in self.clients:
            self.clients[line["id"]].cancel()
        elif event == "sent":
            self.formed_then += 1
            formed = [self.numbers[each] for each in self.formed.popleft()] if self.formed else []
            self.same += formed == line["ids"]

    def recorded(self, line: dict[str, Any]) -> SimRequest:
        request = SimRequest("m", self.begin + line["at"] + line["left_s"], f"r{line['id']}", body=b"%d" % line["id"])
        request.repeatable, request.alone = line["repeatable"], line["alone"]
        request.sender, request.weight, request.priority = str(line["sender"]), line["weight"], line["priority"]
        self.asked[line["id"]] = request
        return request

    async def client(self, i: int, request: SimRequest) -> None:
        number = int(request.identity[1:])
        self.numbers[self.queue.ledger.admitted + 1] = number
        try:
            await self.ask(request)
        except asyncio.CancelledError:
            self.outcomes[request.identity].append("left")

    async def afterwards(self) -> None:
        """What comes after the file: every worker answers, and there are as many as there were."""
        self.over = True
        for worker in list(self.members.values()):
            if worker.alive:
                worker.answer()
            else:
                self.start_soon()
        if self.clients:
            await asyncio.wait(self.clients.values(), timeout=2 * float(self.about["response_timeout_s"]))
        for client in self.clients.values():
            if not client.done():
                self.problems.append("somebody waits for ever")
                client.cancel()
        await asyncio.sleep(1.0)
        for number, request in self.asked.items():
            self.check(request, left=number in self.hung_up or self.outcomes.get(request.identity) == ["left"])
        if self.queue.ledger.open or sum(self.queue.ledger.ended.values()) != self.queue.ledger.admitted:
            self.problems.append(f"the balance is not 0: {self.queue.ledger.open} open, {self.queue.ledger.ended}")

    def start_soon(self) -> None:
        self.new_workers += 1
        self.loop.call_later(START_S, RecordedWorker, self, -self.new_workers)


def again(file: Path, queue: type[ModelQueue] = ModelQueue) -> tuple[list[str], int, int]:
    """What did not hold; how many batches the file has, and how many of them were formed of the same requests again."""
    about, *events = (json.loads(line) for line in file.read_text("ascii").splitlines())
    if about.get("slotwise_history") != VERSION:
        raise ValueError(f"{file} is no history of version {VERSION}")
    problems, history = list[str](), None
    for kills_again in (False, True):
        history = RecordedHistory(about, events, queue, kills_again=kills_again)
        try:
            problems += RecordedLoop().run_until_complete(history.run())
        except NothingLeft:
            problems.append("somebody waits for ever")
    assert history is not None
    return problems, history.formed_then, history.same


if __name__ == "__main__":
    wrong, then, same = again(Path(sys.argv[1]))
    print("\n".join(wrong) or "all that must hold does", f"\n{same} of {then} batches were formed as they were")
    sys.exit(bool(wrong))
