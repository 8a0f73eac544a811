"""Those who wait for a model, in the order in which they go: senders take turns, and each one's own go as they came.

A sender (a key, else an address) that comes goes behind those that are there, but before one that has just had its turn. In its
turn it may send as many requests as its weight says, then it goes behind the others again. Who has a higher priority goes
first, but for one in PATIENCE (Priorities).
So, among equals, no sender has more than `weight` requests go between another one's request that is its sender's next and that.
Where each sender has one request, that is first come, first served; and so it is where there is one sender.
Who is set aside waits in a line with the same turns, a level of its own right below its priority: the others of that priority
go first, but for one in PATIENCE, and lower priorities come after both.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from slotwise.backends.exchange import BackendRequest
from slotwise.backends.local.queue_members import BEHIND, WaitingRequest
from slotwise.backends.priorities import PATIENCE, Priorities


@dataclass(eq=False, slots=True)
class Sender:
    """One who waits. left: how many of its requests may still go in this turn. requests: never none."""

    name: str
    weight: int
    left: int
    requests: deque[WaitingRequest] = field(default_factory=deque)


class WaitingLine:
    """The requests that wait for a model. Some may be closed: they count until their turn comes, or until `drop_closed`.

    some_left: clients of some have gone since then.
    """

    def __init__(self) -> None:
        self.some_left = False
        self._turns: dict[float, OrderedDict[str, Sender]] = {}  # by level, the highest first; then in turn
        self._count = 0
        self._priorities = Priorities()
        self._gone: Sender | None = None  # whose request went last, while it has more

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[WaitingRequest]:
        for turns in self._turns.values():
            for sender in turns.values():
                yield from sender.requests

    def append(self, one: WaitingRequest) -> None:
        """One more waits."""
        request, level = one.request, one.level
        turns = self._turns.get(level)
        if turns is None:
            turns = self._turns[level] = OrderedDict()
            self._turns = dict(sorted(self._turns.items(), reverse=True))
        sender = turns.get(request.sender)
        if sender is None:
            last = next(reversed(turns.values()), None)
            sender = turns[request.sender] = Sender(request.sender, request.weight, request.weight)
            if last is not None and last is self._gone and last.left == last.weight:
                turns.move_to_end(last.name)
        elif sender.weight != request.weight:  # its key was changed
            sender.weight, sender.left = request.weight, min(sender.left, request.weight)
        sender.requests.append(one)
        self._count += 1

    def first(self) -> WaitingRequest | None:
        """Whose turn it is, of those that are open; None: nobody waits."""
        overdue = self._priorities.overdue
        if overdue is not None and (one := self._first_of(self._turns[overdue])):
            return one
        for turns in self._turns.values():
            if one := self._first_of(turns):
                return one
        return None

    def _first_of(self, turns: OrderedDict[str, Sender]) -> WaitingRequest | None:
        while turns:
            sender = next(iter(turns.values()))
            if sender.requests[0].open:
                return sender.requests[0]
            self._pop(turns, sender)
        return None

    def take(self, one: WaitingRequest) -> WaitingRequest:
        """Let the first one go."""
        turns = self._turns[one.level]
        sender = turns[one.request.sender]
        self._pop(turns, sender)
        sender.left -= 1
        if sender.left <= 0 and sender.requests:
            sender.left = sender.weight
            turns.move_to_end(sender.name)
        self._gone = sender if sender.requests else None
        if len(self._turns) > 1:
            self._priorities.gone(one.level, [each for each, senders in self._turns.items() if senders])
        return one

    @property
    def aside(self) -> int:
        """How many wait aside."""
        late = (turns for level, turns in self._turns.items() if level < math.ceil(level))
        return sum(len(sender.requests) for turns in late for sender in turns.values())

    def set_aside(self, before: float) -> None:
        """Let who came before then wait aside, from now on."""
        for turns in [turns for level, turns in self._turns.items() if level == math.ceil(level)]:
            for sender in list(turns.values()):
                while sender.requests and sender.requests[0].came_at < before:
                    one = self._pop(turns, sender)
                    if one.open:
                        one.aside = True
                        self.append(one)

    def ahead_of(self, request: BackendRequest) -> int:
        """How many go before a new request, at least: none whose clients have gone."""
        if self.some_left:
            self.drop_closed()
        turns = self._turns.get(request.priority, OrderedDict[str, Sender]())
        own = turns.get(request.sender)
        count = len(own.requests) if own else 0
        rounds = count // request.weight
        others = (sender for sender in turns.values() if sender is not own)
        before = count + sum(min(len(sender.requests), rounds * sender.weight) for sender in others)
        higher = (each for priority, each in self._turns.items() if priority > request.priority)
        return before + min(PATIENCE * before, sum(len(sender.requests) for each in higher for sender in each.values()))

    def give_way_to(self, request: BackendRequest) -> WaitingRequest | None:
        """Take out whose place a new request gets where there is no room for both; None: it is the one that has to go.

        That is the last one of whoever has most for its weight, of those with the least priority; one that is set aside first.
        """
        own = sum(len(turns[request.sender].requests) for turns in self._lines(request.priority) if request.sender in turns)
        least = (-request.priority, (own + 1) / request.weight)
        most: Sender | None = None
        for level, senders in self._turns.items():
            priority = math.ceil(level)
            other = self._lines(priority)[level < priority]
            for name, sender in senders.items():
                count = len(sender.requests) + (len(other[name].requests) if name in other else 0)
                share = (-priority, count / sender.weight)
                if share > least:
                    most, least = sender, share
        if most is None:
            return None
        turns = next(turns for turns in self._lines(-least[0]) if most.name in turns)
        return self._pop(turns, turns[most.name], last=True)

    def _lines(self, priority: int) -> list[OrderedDict[str, Sender]]:
        """Who waits aside of a priority, and who else."""
        return [self._turns.get(level, OrderedDict()) for level in (priority - BEHIND, priority)]

    def crowds(self, few: int) -> set[str]:
        """The senders that have more waiting than a few, beside others that have not; none, where there are no such others."""
        if len(self._turns) == 1 and all(len(turns) == 1 for turns in self._turns.values()):
            return set()
        counts = Counter[str]()
        for turns in self._turns.values():
            counts.update({sender.name: len(sender.requests) for sender in turns.values()})
        crowds = {name for name, count in counts.items() if count > few}
        return crowds if len(crowds) < len(counts) else set()

    def drop_closed(self) -> None:
        """Forget those that nobody waits for any more."""
        self.some_left = False
        for turns in self._turns.values():
            for sender in list(turns.values()):
                before = len(sender.requests)
                sender.requests = deque(one for one in sender.requests if one.open)
                self._count -= before - len(sender.requests)
                if not sender.requests:
                    del turns[sender.name]

    def _pop(self, turns: OrderedDict[str, Sender], sender: Sender, *, last: bool = False) -> WaitingRequest:
        """Its next one, or its last, which has gone then."""
        one = sender.requests.pop() if last else sender.requests.popleft()
        self._count -= 1
        if not sender.requests:
            del turns[sender.name]
        return one
