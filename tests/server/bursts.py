"""Requests that arrive together, so that they share a batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from slotwise.client.inference import InferenceClient
from slotwise.errors import SlotwiseError

GAP_S = 0.01  # enough for requests to arrive in the order in which they were sent, nearly always


@dataclass(frozen=True)
class Answer:
    """What one request got. status 0: nothing, in time. batch_size, slot: None where the handler was not asked."""

    status: int
    body: Any
    batch_size: int | None
    slot: int | None
    headers: httpx.Headers

    @property
    def is_clean_error(self) -> bool:
        """A JSON error of ours, in the agreed form, that gives nothing away."""
        error = self.body.get("error", {}) if isinstance(self.body, dict) else {}
        told = str(error.get("message", ""))
        return error.get("code") == self.status and bool(told) and "secret" not in told and "Traceback" not in told


NOTHING = Answer(0, None, None, None, httpx.Headers())


def answer(response: httpx.Response) -> Answer:
    """The parts of a response that tests look at."""
    try:
        body = response.json()
    except ValueError:
        body = response.text
    numbers = [response.headers.get(name) for name in ("x-batch-size", "x-batch-slot")]
    size, slot = [None if number is None else int(number) for number in numbers]
    return Answer(response.status_code, body, size, slot, response.headers)


def ask(client: InferenceClient, model: str, body: bytes) -> Answer:
    """One request's answer; status 0 where the server keeps its client waiting."""
    try:
        return answer(client.predict(model, body))
    except SlotwiseError:
        return NOTHING


def burst(client: InferenceClient, model: str, bodies: Sequence[bytes], gap_s: float = GAP_S) -> list[Answer]:
    """Send each body as a request of its own, all at once; answers in the order of the bodies."""
    started = time.monotonic()

    def send(i: int) -> Answer:
        time.sleep(max(0.0, started + i * gap_s - time.monotonic()))
        return ask(client, model, bodies[i])

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(send, range(len(bodies))))


def together(
    client: InferenceClient, model: str, bodies: Sequence[bytes], gap_s: float = GAP_S, patience_s: float = 120
) -> list[Answer]:
    """The answers of a burst that was one batch: where a busy machine has split it into several, it is sent again."""
    deadline = time.monotonic() + patience_s
    while True:
        answers = burst(client, model, bodies, gap_s)
        sizes = {answer.batch_size for answer in answers}
        if sizes == {len(bodies)} or None in sizes or time.monotonic() > deadline:
            return answers


@contextmanager
def counting(client: InferenceClient, model: str, clients: int) -> Iterator[list[tuple[int, Answer]]]:
    """Within, every client sends one number after the other; the list gets each number and its answer."""
    answers: list[tuple[int, Answer]] = []
    done = threading.Event()

    def count() -> None:
        number = 0
        while not done.is_set():
            number += 1
            answers.append((number, ask(client, model, str(number).encode())))

    threads = [threading.Thread(target=count) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        done.set()
        for thread in threads:
            thread.join()
