"""Decode a batch's requests in threads, so that a slow request does not hold up the others.

No decoder can be stopped. One that takes longer than its share is left behind in its thread: new threads decode the requests
that wait, and its own request is answered without it.

A change of threads takes longer than decoding a small body. So a handler that has always been quick decodes without threads, as
long as no body is larger than those it was quick with.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from slotwise.worker.request import Request

QUICK_S = 0.001  # of computing a request, on average
PREEMPTED_S = 0.02  # that a quick batch may wait for a core: where others keep the cores busy it is not the handler's fault
TRUSTED_AFTER = 256  # requests in a row that were quick
DOUBTED_FOR = 10_000  # requests, after a trusted handler was slow once
MAX_STUCK = 32  # threads that were left behind and still run; with more the worker is not fit to serve


class Work:
    """One batch's requests. Whichever thread is free takes the next one."""

    def __init__(self, call: Callable[[Any], Any], requests: Sequence[Any]) -> None:
        self.call, self.requests = call, requests
        self.waiting = deque(range(len(requests)))
        self.results: list[Any] = [None] * len(requests)
        self.left = len(requests)
        self.computed_s = 0.0
        self.lock = threading.Lock()
        self.done = threading.Lock()  # released once by the thread that finishes the last request
        self.done.acquire()

    def take(self) -> None:
        """Decode one request after the other until none waits."""
        while True:
            try:
                i = self.waiting.popleft()
            except IndexError:
                return
            before = time.thread_time()
            self.results[i] = self.call(self.requests[i])
            with self.lock:
                self.computed_s += time.thread_time() - before
                self.left -= 1
                if not self.left:
                    self.done.release()


class Decoders:
    """`threads` threads; started with the first batch that needs them."""

    def __init__(self, threads: int) -> None:
        self.threads = max(1, threads)
        self.queue: SimpleQueue[Work | None] | None = None
        self.running: list[threading.Thread] = []
        self.behind: list[threading.Thread] = []
        self.quick = 0  # requests in a row
        self.largest = 0  # bytes of a body that was quick
        self.took_long = False  # the last batch, and whether it computed or waited for a core is not known

    def run(self, call: Callable[[Any], Any], requests: Sequence[Request], share_s: float, until: float) -> list[Any]:
        """`call(request)` of every request, None where it was not ready at `until` (time.monotonic()).

        The first requests are started first. `call` raises nothing.
        """
        most_s = QUICK_S * len(requests)
        largest = max([len(request.body) for request in requests], default=0)
        trusted = self.quick >= TRUSTED_AFTER and largest <= self.largest
        # A thread's own time is a system call: of a trusted handler it is asked for only after a batch that took long.
        clock = time.monotonic if trusted and not self.took_long else time.thread_time
        started, computed_s = time.monotonic(), -clock()
        results: list[Any] = []
        if trusted or len(requests) <= 1:  # one alone holds up nobody
            for request in requests:
                results.append(call(request))
                if time.monotonic() - started > most_s + PREEMPTED_S:  # not so quick after all
                    break
        computed_s += clock()
        if len(results) < len(requests):
            work = self._side_by_side(call, requests[len(results) :], share_s, until)
            results += work.results
            computed_s += work.computed_s
        took_s = time.monotonic() - started
        self.took_long = took_s > most_s
        if (computed_s <= most_s or clock is time.monotonic) and took_s <= most_s + PREEMPTED_S:
            self.quick, self.largest = self.quick + len(requests), max(self.largest, largest)
        else:
            self.quick, self.largest = -DOUBTED_FOR if trusted else 0, 0
        return results

    def _side_by_side(self, call: Callable[[Any], Any], requests: Sequence[Request], share_s: float, until: float) -> Work:
        """The work: finished, or as far as it came until then."""
        work = Work(call, requests)
        self._start(work)
        while not work.done.acquire(timeout=max(0.0, min(share_s, until - time.monotonic()))):
            if time.monotonic() >= until:
                work.waiting.clear()
                self._leave_behind()
                break
            if work.waiting:
                self._leave_behind()
                self._start(work)
        return work

    def stuck(self) -> int:
        """How many threads were left behind and still run."""
        self.behind = [thread for thread in self.behind if thread.is_alive()]
        return len(self.behind)

    def close(self) -> None:
        """Let the threads end."""
        if self.queue is not None:
            for _ in self.running:
                self.queue.put(None)
        self.queue, self.running = None, []

    def _start(self, work: Work) -> None:
        queue = self.queue
        if queue is None:
            queue = self.queue = SimpleQueue()
            names = [f"decode-{i}" for i in range(self.threads)]
            self.running = [threading.Thread(target=_serve, args=(queue,), name=name, daemon=True) for name in names]
            for thread in self.running:
                thread.start()
        for _ in range(min(self.threads, len(work.waiting))):
            queue.put(work)

    def _leave_behind(self) -> None:
        self.behind += self.running
        self.close()


def _serve(queue: SimpleQueue[Work | None]) -> None:
    while (work := queue.get()) is not None:
        work.take()
