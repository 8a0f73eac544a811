"""What an operator does and what accidents do, on a real server: nobody gets a wrong answer.

TorchServe and MMS forget requests that a worker had taken for its next batch when it is stopped (TorchServe) or killed (MMS):
their clients hear nothing. The gateway's deadlines and retries are for that; here such a request counts as lost.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

import pytest

from slotwise.client.inference import InferenceClient
from slotwise.errors import SlotwiseError
from tests.server.bursts import NOTHING, Answer, ask, burst, counting, together
from tests.server.conftest import BATCHES, Live

pytestmark = pytest.mark.server


def right(number: int, got: Answer) -> bool:
    return got.status == 200 and got.body == {"answer": 2.0 * number + 1}


def single(live: Live, model: str, number: int) -> Answer:
    return ask(live.inference, model, str(number).encode())


def test_a_partial_batch_is_answered_once_its_delay_is_over(live: Live) -> None:
    answers = together(live.inference, "faults", [b"1", b"text", b"3"])
    assert [(got.status, got.batch_size) for got in answers] == [(200, 3), (400, 3), (200, 3)]
    assert {got.slot for got in answers} == {0, 1, 2}
    assert answers[1].body["error"].items() >= {"code": 400, "message": "'text' is not a number"}.items()
    for got in answers:
        assert got.headers["content-type"] == "application/json"
        assert float(got.headers["x-decode-ms"]) >= 0
        assert float(got.headers["x-inference-ms"]) >= 0


def test_a_wrong_number_of_outputs_shifts_no_answer(live: Live) -> None:
    answers = burst(live.inference, "faults", [b"short", *(str(n).encode() for n in range(7))])
    assert all((got.status == 500 and got.is_clean_error) or right(i - 1, got) for i, got in enumerate(answers))
    assert answers[0].status == 500


def test_registering_twice_is_refused_in_the_servers_words_and_changes_nothing(live: Live) -> None:
    before = live.pids("faults")
    with pytest.raises(SlotwiseError, match=r"cannot register faults\.mar: .*already registered"):
        live.management.register("faults.mar", **BATCHES)
    assert live.pids("faults") == before


def test_a_model_that_is_unregistered_is_gone_and_may_come_back_with_other_settings(live: Live) -> None:
    with live.registered("quick") as model:
        assert (model.batch_size, model.max_batch_delay) == (4, 10)
        assert right(5, single(live, "quick", 5))
    assert single(live, "quick", 5).status == 404
    with pytest.raises(SlotwiseError, match="cannot describe quick: Model not found"):
        live.management.describe("quick")
    with live.registered("quick", batch_size=2, max_batch_delay=7) as model:
        assert (model.batch_size, model.max_batch_delay) == (2, 7)
        assert right(6, single(live, "quick", 6))


def replaced(live: Live, model: str, pid: int) -> None:
    """Wait until another worker than the one with this pid is READY."""
    deadline = time.monotonic() + 300
    while live.pids(model) in ([pid], [0], []):
        assert time.monotonic() < deadline, "no new worker"
        time.sleep(0.1)
    live.management.wait_ready(model)


def scaled_under_load(live: Live, client: InferenceClient, clients: int = 3) -> list[tuple[int, Answer]]:
    """Scale `quick` to two workers and back to one while clients count; every number and its answer, more than 20."""
    with counting(client, "quick", clients) as answers:
        for workers in (2, 1):
            live.management.scale("quick", workers)
            scaled = live.management.wait_ready("quick", workers)
            assert len({worker.pid for worker in scaled.workers}) == workers
        deadline = time.monotonic() + 60
        while len(answers) <= 20 and time.monotonic() < deadline:  # a busy machine answers slowly
            time.sleep(0.05)
    assert len(answers) > 20
    return answers


def until_the_new_worker_answers(live: Live, model: str, pid: int, count: int) -> list[Answer]:
    """The answers of `count` requests, in whose midst the worker with this pid is killed.

    Requests are taken in the order in which they came: once one that came after them is answered, those that are still without
    an answer were lost, and nobody waits for them.
    """
    got = [NOTHING] * count

    def send(n: int) -> None:
        with suppress(Exception):  # also when nobody waits any more
            got[n] = single(live, model, n)

    threads = [threading.Thread(target=send, args=(n,), daemon=True) for n in range(count)]
    for n, thread in enumerate(threads):
        thread.start()
        time.sleep(0.02)
        if n == count // 3:
            os.kill(pid, signal.SIGKILL)
    replaced(live, model, pid)
    while not right(7, single(live, model, 7)):
        time.sleep(0.1)
    late = time.monotonic() + 2
    for thread in threads:
        thread.join(max(0.0, late - time.monotonic()))
    return list(got)


def test_a_worker_killed_under_load_comes_back(live: Live) -> None:
    with live.registered("quick") as model:
        answers = until_the_new_worker_answers(live, "quick", model.workers[0].pid, 80)
    others = [got for n, got in enumerate(answers) if not right(n, got)]
    assert len(others) < 40
    assert all(got.status == 0 or got.status >= 500 for got in others)


def test_a_dead_engine_ends_its_worker_and_a_new_one_takes_over(live: Live) -> None:
    with live.registered("quick", batch_size=4, max_batch_delay=30_000) as model:  # four are one batch, however late they come
        answers = burst(live.inference, "quick", [b"1", b"die", b"3", b"4"])
        again = live.record.kind == "slotwise"  # not computed: sent to the next worker
        assert [got.status for got in answers] == ([200, 500, 200, 200] if again else [503] * 4)
        assert all(got.is_clean_error for got in answers if got.status != 200)
        replaced(live, "quick", model.workers[0].pid)
        answers = burst(live.inference, "quick", [b"5", b"6", b"7", b"8"])
        assert all(right(n, got) for n, got in enumerate(answers, start=5))


def test_ready_means_that_every_model_can_answer(live: Live) -> None:
    assert live.management.ready()
    live.management.register("broken.mar", initial_workers=1)
    try:
        with pytest.raises(SlotwiseError, match=r"broken does not become ready: .*weights\.bin is not in the archive"):
            live.management.wait_ready("broken")
        assert not live.management.ready()
    finally:
        live.management.unregister("broken")
    assert live.management.ready()
