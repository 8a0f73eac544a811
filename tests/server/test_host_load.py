"""A host of our own whose model's workers follow its load: it rises and falls, and nobody loses an answer."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import build_handler
from tests.server.test_host import PATIENCE_S, Project, started_project

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

CLIENTS = 12
BATCH_S = 0.1


def described(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(project.slotwise("describe", "model", "--json"))
    return found


def until_ready(project: Project, count: int) -> dict[str, Any]:
    """The model's description, once it has just so many workers, all of them ready."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        live = described(project)
        if [worker["status"] for worker in live["workers"]] == ["READY"] * count:
            return live
        assert time.monotonic() < deadline, live
        time.sleep(0.5)


def test_workers_come_and_go_with_the_load_and_an_operator_has_the_last_word(tmp_path: Path) -> None:
    (tmp_path / "model_store").mkdir()
    archive = build_handler("model", tmp_path / "model_store", tmp_path / "models")
    settings = {"batch_size": 2, "initial_workers": "auto", "max_workers": 3}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    with started_project(tmp_path, [f"model_store/{archive.name}"], *options) as project:
        url, over, wrong, answered = f"{project.gateway.url}/predictions/model", threading.Event(), list[str](), list[int]()

        def ask(i: int) -> None:
            with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
                while not over.is_set():
                    for body, own in ((f"sleep {BATCH_S}", 2 * BATCH_S + 1), (str(i), 2.0 * i + 1)):
                        answer = client.post(url, content=body)
                        if answer.status_code != 200 or answer.json() != {"answer": own}:
                            wrong.append(f"{body}: {answer.status_code} {answer.text}")
                        answered.append(i)

        assert len(until_ready(project, 1)["workers"]) == 1
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            until_ready(project, 3)
            project.slotwise("drift", "cpu", *options)  # fails where there is a difference
        finally:
            over.set()
            for thread in threads:
                thread.join()
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
            by_load = until_ready(project, 1)["batch_cost"]["workers"]
            assert client.post(url, content="3").json() == {"answer": 7.0}
        assert wrong == []
        assert (by_load["least"], by_load["most"]) == (1, 3)
        whys = [change["why"] for change in by_load["changes"]]
        assert whys in (["busy", "busy", "idle"], ["busy", "busy", "idle", "idle"])  # whether the last of the load was seen
        text = project.slotwise("describe", "model")
        assert re.search(r"workers    1 to 3, by the load: 1, not [23]: 1 would be busy less than 50% of their time", text)
        log = (tmp_path / "state" / "default" / "server.log").read_text()
        assert "model@1.0: workers: 3, not 2: 2 are busy" in log
        numbers = httpx.get(f"http://127.0.0.1:{project.server.ports.metrics}/metrics", trust_env=False).text
        assert 'slotwise_host_worker_changes_total{model="model",reason="busy",version="1.0"} 2.0' in numbers
        assert 'slotwise_host_open_requests{model="model",version="1.0"} 0.0' in numbers
        project.slotwise("scale", "model", "--workers", "2")
        by_load = described(project)["batch_cost"]["workers"]
        assert (by_load["least"], by_load["most"]) == (2, 2)
