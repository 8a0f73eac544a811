"""When the decoders take threads, and when they ask what decoding cost."""

from __future__ import annotations

import threading
import time

import pytest

from slotwise.worker import decoders
from slotwise.worker.decoders import TRUSTED_AFTER, Decoders
from slotwise.worker.request import Headers, Request

REQUESTS = [Request(b"body", Headers({})) for _ in range(4)]


def run(pool: Decoders, call: object) -> list[object]:
    return pool.run(call, REQUESTS, 10.0, time.monotonic() + 60)  # type: ignore[arg-type]


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> Decoders:
    """Decoders of a handler that has been quick until now, however long a batch waits for a core."""
    monkeypatch.setattr(decoders, "PREEMPTED_S", 60.0)
    pool = Decoders(2)
    while pool.quick < TRUSTED_AFTER:
        run(pool, lambda request: request.body)
    return pool


def test_a_trusted_handler_decodes_here_and_nobody_asks_for_the_threads_time(
    trusted: Decoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders.time, "thread_time", lambda: pytest.fail("a system call"))
    trusted.took_long = False
    assert run(trusted, lambda request: threading.current_thread()) == [threading.current_thread()] * 4


def test_a_trusted_handler_that_computes_long_is_doubted_by_the_second_batch(trusted: Decoders) -> None:
    def slow(request: Request) -> bytes:
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass
        return request.body

    for _ in range(2):
        assert run(trusted, slow) == [b"body"] * 4
    assert trusted.quick < 0


def test_a_trusted_handler_that_waited_for_a_core_stays_trusted(trusted: Decoders) -> None:
    for _ in range(2):
        run(trusted, lambda request: time.sleep(0.002))
    assert trusted.took_long
    assert trusted.quick >= TRUSTED_AFTER
