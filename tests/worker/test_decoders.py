"""Decoders have a limit in time each, and a limit of how many of them run at once, whatever they do."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.worker import Headers, Request
from slotwise.worker.decoding import decoders
from slotwise.worker.decoding.decoders import Decoders


class Author:
    """Decodes b"ok" at once, and b"hang" when it is released, or when so many "ok" are done: those waited for none that hangs.

    It counts how many run at the same time.
    """

    def __init__(self) -> None:
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.now = self.most = 0
        self.release_after = -1

    def __call__(self, request: Request) -> bytes:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        if request.body == b"hang":
            assert self.released.wait(60), "all others wait for this one"
        with self.lock:
            self.now -= 1
            self.release_after -= request.body == b"ok"
            if self.release_after == 0:
                self.released.set()
        return request.body


@pytest.fixture
def author() -> Iterator[Author]:
    made = Author()
    yield made
    made.released.set()


def requests(*bodies: bytes) -> list[Request]:
    return [Request(body, Headers({})) for body in bodies]


def soon(seconds: float) -> float:
    return time.monotonic() + seconds


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([b"ok", b"hang"]), max_size=12), st.integers(1, 3))
def test_whatever_hangs_every_other_request_is_decoded(bodies: list[bytes], threads: int) -> None:
    author, pool = Author(), Decoders(threads)
    bodies = [*bodies, b"ok"]
    author.release_after = bodies.count(b"ok")
    share_s = 0.02  # a busy machine keeps a quick one waiting for less
    assert pool.run(author, requests(*bodies), share_s, soon(60)) == bodies
    assert author.most <= threads + bodies.count(b"hang")


def test_one_alone_has_a_limit_too_and_however_often_its_handler_was_quick(author: Author) -> None:
    pool = Decoders(2)
    for _ in range(400):
        pool.run(author, requests(b"ok"), 1, soon(60))
    assert pool.run(author, requests(b"hang"), 0.01, soon(0.05)) == [None]


def test_never_more_than_the_bound_run_at_once_and_then_none(author: Author, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "MAX_STUCK", 5)
    pool = Decoders(2)
    while pool.stuck() < 5 + 2:
        assert pool.run(author, requests(*[b"hang"] * 20), 0.005, soon(0.05)) == [None] * 20
        assert author.now <= pool.stuck()
    while author.now < 5 + 2:  # one is just about to call
        time.sleep(0.001)
    assert author.most == author.now == 5 + 2
    before = time.monotonic()
    assert pool.run(author, requests(b"ok"), 1, soon(600)) == [None], "no thread is free, and nobody waits for one"
    assert time.monotonic() - before < 60
    author.released.set()
    while pool.stuck():
        time.sleep(0.001)
    assert pool.run(author, requests(b"ok"), 1, soon(60)) == [b"ok"]


def test_who_was_left_behind_takes_no_further_request(author: Author) -> None:
    pool = Decoders(2)
    pool.run(author, requests(*[b"hang"] * 6), 0.005, soon(0.2))
    author.released.set()
    while pool.stuck():
        time.sleep(0.001)
    author.most = 0
    pool.run(author, requests(*[b"ok"] * 100), 1, soon(60))
    assert author.most <= 2


def test_the_bodies_of_a_batch_that_is_over_are_let_go(author: Author) -> None:
    pool = Decoders(2)
    (sent,) = requests(b"ok")
    pool.run(author, [sent], 1, soon(60))
    gone = weakref.ref(sent)
    del sent
    for _ in range(1000):
        gc.collect()
        if gone() is None:
            return
        time.sleep(0.005)
    pytest.fail("somebody keeps the request")


def test_a_thread_in_which_the_worker_itself_fails_goes_on() -> None:
    def fails(request: Request) -> bytes:
        if request.body == b"bad":
            raise KeyboardInterrupt
        return request.body

    assert Decoders(1).run(fails, requests(b"bad", b"ok"), 1, soon(60)) == [None, b"ok"]


@pytest.mark.parametrize("closed", [True, False])
def test_decoders_that_are_closed_or_forgotten_let_their_threads_end(closed: bool) -> None:
    pool = Decoders(2)
    pool.run(lambda request: request.body, requests(b"ok"), 1, soon(60))
    threads = list(pool.running)
    if closed:
        pool.close()
    del pool
    for thread in threads:
        thread.join(60)
    assert threads
    assert not any(thread.is_alive() for thread in threads)
