"""Requests that meet in one batch: their worker is stopped until all of them wait for it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import httpx

from tests.support.deployments import Deployment
from tests.support.waiting import until

Request = TypeVar("Request")


def in_one_batch(
    deployment: Deployment, model: str, ask: Callable[[Request], httpx.Response], first: Request, requests: Sequence[Request]
) -> list[httpx.Response]:
    """The answers to these requests, which a model's only worker gets together. first: what it has while they come."""
    (worker,) = deployment.call("GET", f"/models/{model}").json()[0]["workers"]
    before = number(deployment, model, "batches_total")

    def there(count: int) -> bool:  # the first is with the worker
        return (number(deployment, model, "open_requests"), number(deployment, model, "waiting_requests")) == (count, count - 1)

    with ThreadPoolExecutor(len(requests) + 1) as clients:
        os.kill(worker["pid"], signal.SIGSTOP)
        try:
            ahead = clients.submit(ask, first)
            until(lambda: there(1), "the worker is not given the first")
            asked = [clients.submit(ask, one) for one in requests]
            until(lambda: there(1 + len(requests)), "they do not wait")
        finally:
            os.kill(worker["pid"], signal.SIGCONT)
        answers = [one.result() for one in asked]
        assert ahead.result().status_code == 200
    until(lambda: number(deployment, model, "open_requests") == 0, "not all of them have ended")
    assert number(deployment, model, "batches_total") == before + 2
    return answers


def number(deployment: Deployment, model: str, name: str) -> float:
    """One of the host's own numbers about a model."""
    text = deployment.asked("GET", f"{deployment.metrics}/metrics").text
    found = re.search(rf'^slotwise_host_{name}{{[^}}]*model="{model}"[^}}]*}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0
