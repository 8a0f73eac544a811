"""What one neighbour does, in a process of its own, until it is told to stop; it counts what it was answered."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Event

from benchmarks.comparison.misbehaving import AT_DECODE, AT_ENCODE, AT_PREDICT, HANG, KILL, TOO_FEW
from tests.campaign.hostile_attacks import PATIENCE_S, connected, received
from tests.frontend.smuggling import FAMILIES, tried

Seen = Counter[str]
PAUSE_S = 0.02  # between an answer and the next request, as the innocents have it
PAIR = 2  # connections of one that sends bad bodies: one request in nine is bad
EVERY_S = 1.0  # a killer or a body that hangs
FLOOD = 64  # connections without a pause
HASTY = 8  # connections that hang up
SMUGGLERS = 24
SMUGGLING_S = 0.5  # for the answers to one case
STOP_S = 20.0
HUGE_BYTES = 64 * 2**20
GOOD, CUT, LOUD, HUGE = "good", "cut", "loud", "a huge body"


@dataclass(frozen=True)
class Aim:
    """The server, and the whole requests that its bodies make, by name."""

    address: tuple[str, int]
    path: str
    requests: dict[str, bytes]


Act = Callable[[Aim, Event, Seen], None]


def _one(aim: Aim, seen: Seen, data: bytes) -> None:
    with connected(aim.address) as connection:
        with contextlib.suppress(OSError):  # refused before all of it was sent
            connection.sendall(data)
        received(connection, seen)


def side_by_side(count: int, act: Act) -> Act:
    """The same so many times at once."""

    def acts(aim: Aim, stop: Event, seen: Seen) -> None:
        counts = [Counter[str]() for _ in range(count)]
        threads = [threading.Thread(target=act, args=(aim, stop, each), daemon=True) for each in counts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen.update(sum(counts, Counter()))

    return acts


def sending(name: str, pause_s: float = PAUSE_S) -> Act:
    """One request after the other, each when the one before is answered."""

    def act(aim: Aim, stop: Event, seen: Seen) -> None:
        while not stop.is_set():
            _one(aim, seen, aim.requests[name])
            stop.wait(pause_s)

    return act


def now_and_then(name: str) -> Act:
    """One request every second, whose answer is not waited for; none more while PAIR of them have none."""

    def act(aim: Aim, stop: Event, seen: Seen) -> None:
        threads: list[threading.Thread] = []
        while not stop.is_set():
            threads = [thread for thread in threads if thread.is_alive()]
            if len(threads) < PAIR:
                threads.append(threading.Thread(target=_one, args=(aim, seen, aim.requests[name]), daemon=True))
                threads[-1].start()
                seen["sent"] += 1
            stop.wait(EVERY_S)

    return act


def hanging_up(aim: Aim, stop: Event, seen: Seen) -> None:
    """Send a whole request, or half of one, and close the connection."""
    good = aim.requests[GOOD]
    while not stop.is_set():
        with connected(aim.address) as connection:
            connection.sendall(good if seen["hung up"] % 2 else good[: len(good) - 9])
            stop.wait(0.005)
        seen["hung up"] += 1


def flooding(aim: Aim, stop: Event, seen: Seen) -> None:
    """Good requests on one connection that is kept, without a pause."""
    while not stop.is_set():
        with connected(aim.address) as connection:
            while not stop.is_set():
                connection.sendall(aim.requests[GOOD])
                if not received(connection, seen):
                    break


def smuggling(aim: Aim, stop: Event, seen: Seen) -> None:
    """Each published case once, in turn: was the request that is hidden in its body answered, too?"""
    cases = deque(case for family in FAMILIES.values() for case in family(f"POST {aim.path}"))

    def some(aim: Aim, stop: Event, seen: Seen) -> None:
        while cases and not stop.is_set():
            with contextlib.suppress(OSError, IndexError):  # another one has taken the last case
                found = tried(aim.address, cases.pop(), f"POST {aim.path}", SMUGGLING_S, 0.01, b"")
                seen["hidden answered" if len(found.statuses) > 1 else "kept apart"] += 1

    side_by_side(SMUGGLERS, some)(aim, stop, seen)


def bad(name: str) -> Act:
    """A body of that name on two connections."""
    return side_by_side(PAIR, sending(name))


NEIGHBOURS: dict[str, Act] = {
    "a bad item": bad(CUT),
    "an exception in preprocessing": bad(AT_DECODE),
    "an exception in inference": bad(AT_PREDICT),
    "an exception in postprocessing": bad(AT_ENCODE),
    "too few results": bad(TOO_FEW),
    "a body that kills the worker": now_and_then(KILL),
    "a body that hangs": now_and_then(HANG),
    "a loud row": bad(LOUD),
    HUGE: sending(HUGE),
    "a client that hangs up": side_by_side(HASTY, hanging_up),
    "a flood": side_by_side(FLOOD, flooding),
    "request smuggling": smuggling,
}
QUANTISED = ("a loud row",)  # at a model that is quantised with one scale a batch


class Neighbour:
    """One of NEIGHBOURS at work, from its start until `stop`."""

    def __init__(self, name: str, aim: Aim) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # its imports are not waited for once more
        self._over, self._queue = context.Event(), context.SimpleQueue()
        self._process = context.Process(target=_act, args=(name, aim, self._over, self._queue), daemon=True)
        self.seen: dict[str, int] = {}

    def start(self) -> None:
        """Begin; returns when it is at work."""
        self._process.start()
        self._queue.get()

    def stop(self) -> None:
        """End it. What it was answered is in `seen`."""
        self._over.set()
        self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        elif not self._queue.empty():
            self.seen = self._queue.get()


def _act(name: str, aim: Aim, over: Event, queue: multiprocessing.SimpleQueue) -> None:  # type: ignore[type-arg]
    queue.put("at work")
    seen = Counter[str]()
    working = threading.Thread(target=NEIGHBOURS[name], args=(aim, over, seen), daemon=True)
    working.start()
    over.wait()
    working.join(PATIENCE_S)
    queue.put(dict(seen))
