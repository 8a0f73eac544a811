"""Run an author's hooks for the requests of a batch, so that none of them can hold up the others.

No hook can be stopped. So they run in threads, which the batch's own thread can leave behind. A request that takes longer than
its share while others wait goes on alone: its thread takes no other request, ends when it is done, and another thread takes its
place. Whatever is not done at the end of the batch's time is left behind as well, and answered without.

At any moment at most `threads` + MAX_STUCK requests are being decoded, those that earlier batches left behind among them. Where
no thread can be had any more, requests are not decoded, and the worker ends after this batch.

A change of threads takes some 20 microseconds, which is more than decoding a small tensor takes. So a quick batch wakes one
thread, once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar, cast

from slotwise.worker.request import Request

logger = logging.getLogger(__name__)

QUICK_S = 0.001  # that a batch may take in one thread before the others are woken
MAX_STUCK = 32  # threads that were left behind and still run; with more the worker is not fit to serve

Outcome = TypeVar("Outcome")


class Work:
    """One batch's requests. Whichever thread is free takes the next one."""

    def __init__(self, call: Callable[[Request], object], requests: Sequence[Request]) -> None:
        self.call, self.requests = call, requests
        self.waiting = deque(range(len(requests)))
        self.outcomes: list[object] = [None] * len(requests)
        self.left = len(requests)
        self.lock = threading.Lock()  # for all that a thread and the batch look at both
        self.done = threading.Lock()  # released once, by the thread that finishes the last request
        self.done.acquire()

    def take(self, decoder: DecoderThread) -> None:
        """Decode one request after the other until none waits, or the decoder is left behind."""
        i = self._next(decoder)
        while i is not None:
            outcome = None
            try:
                outcome = self.call(self.requests[i])
            except BaseException:  # nobody would see that a thread has ended
                logger.exception("request %s: decoding it ended its thread", self.requests[i].id)
            i = self._next(decoder, i, outcome)

    def _next(self, decoder: DecoderThread, finished: int | None = None, outcome: object = None) -> int | None:
        """Keep the outcome of what is finished, and say which request this decoder is at now."""
        with self.lock:
            decoder.since = None
            if finished is not None:
                self.outcomes[finished] = outcome
                self.left -= 1
                if not self.left:
                    self.done.release()
            if decoder.behind or not self.waiting:
                return None
            decoder.since = time.monotonic()
            return self.waiting.popleft()

    def close(self) -> list[object]:
        """What there is by now. No further request is started."""
        with self.lock:
            self.waiting.clear()
            return list(self.outcomes)


class DecoderThread(threading.Thread):
    """One thread.

    since: on time.monotonic(), when the request that it is at was started; None: it is at none. behind: whether it ends after
    that request. work: what it was given last; only the batch's thread looks at it.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.inbox: SimpleQueue[Work | None] = SimpleQueue()
        self.since: float | None = None
        self.behind = False
        self.work: Work | None = None

    def run(self) -> None:
        """Do the work that comes."""
        while not self.behind and (work := self.inbox.get()) is not None:
            work.take(self)
            del work  # with the bodies of a batch that is over


class Decoders:
    """At most `threads` threads, and those that were left behind. For one batch at a time."""

    def __init__(self, threads: int) -> None:
        self.threads = max(1, threads)
        self.running: list[DecoderThread] = []
        self.behind: list[DecoderThread] = []
        self.quick = True  # whether one thread was enough for the last batch

    def run(
        self, call: Callable[[Request], Outcome], requests: Sequence[Request], share_s: float, until: float
    ) -> list[Outcome | None]:
        """`call(request)` of every request, None where it was not ready at `until` (time.monotonic()).

        The first requests are started first. `call` raises nothing.
        """
        if not requests:
            return []
        return cast("list[Outcome | None]", self._in_threads(Work(call, requests), share_s, until))

    def stuck(self) -> int:
        """How many threads were left behind and are still at their request."""
        self.behind = [decoder for decoder in self.behind if decoder.since is not None]
        return len(self.behind)

    def close(self) -> None:
        """Let the threads end."""
        for decoder in self.running:
            decoder.inbox.put(None)
        self.running = []

    __del__ = close  # no thread stays of a handler that nobody has any more

    def _in_threads(self, work: Work, share_s: float, until: float) -> list[object]:
        """The outcomes: all, or as far as the work came until then."""
        try:
            self._wake(work, 1 if self.quick else self.threads)
            self.quick = ended = _wait(work, min(QUICK_S, until - time.monotonic()))
            while not ended and self.running and time.monotonic() < until:
                self._leave_behind(work, share_s)
                self._wake(work, self.threads)
                ended = _wait(work, min(self._patience(work, share_s), until - time.monotonic()))
        finally:
            outcomes = work.close()
            if work.left:
                self._leave_behind(work, 0.0, self.threads)
            for decoder in self.running:
                decoder.work = None
        return outcomes

    def _wake(self, work: Work, count: int) -> None:
        """Have up to `count` threads at this work, as many as have something to do."""
        count = min(count, len(work.waiting) + sum(decoder.work is work for decoder in self.running))
        while len(self.running) < count and len(self.running) + self.stuck() < self.threads + MAX_STUCK:
            decoder = DecoderThread(f"decode-{len(self.running)}")
            decoder.start()
            self.running.append(decoder)
        for decoder in self.running[:count]:
            if decoder.work is not work:
                decoder.work = work
                decoder.inbox.put(work)

    def _leave_behind(self, work: Work, share_s: float, more: int = 0) -> None:
        """Leave behind who has been at one request for longer than its share, as long as fewer than MAX_STUCK + more are."""
        with work.lock:
            before = time.monotonic() - share_s
            late = [decoder for decoder in self.running if decoder.since is not None and decoder.since <= before]
            for decoder in late if work.waiting or more else []:
                if self.stuck() < MAX_STUCK + more:
                    decoder.behind = True
                    self.running.remove(decoder)
                    self.behind.append(decoder)

    def _patience(self, work: Work, share_s: float) -> float:
        """Seconds until somebody may have been at one request for longer than its share while others wait."""
        if not work.waiting:
            return float("inf")
        now = time.monotonic()
        starts = [since for decoder in self.running if (since := decoder.since) is not None]
        return max(QUICK_S, min(starts, default=now) + share_s - now)


def _wait(work: Work, seconds: float) -> bool:
    """Whether all of the work is done."""
    return work.done.acquire(timeout=max(0.0, min(seconds, 3600.0)))
