"""What an operator does and what accidents do, on TorchServe and on MMS: nobody gets a wrong answer."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from slotwise.client.http_exchange import REQUEST_ID
from tests.server.bursts import burst
from tests.server.conftest import Live, build_handler
from tests.server.contract.lifecycle import *  # noqa: F403
from tests.server.contract.lifecycle import right, scaled_under_load


def test_scaling_up_and_down_under_load(live: Live) -> None:
    with live.registered("quick") as model:
        answers = scaled_under_load(live, live.hasty, clients=3)
        assert live.management.describe("quick").workers[0].pid == model.workers[0].pid
    others = [(number, got.status, got.body) for number, got in answers if not right(number, got)]
    assert [status for _, status, _ in others if status != 0 and status < 500] == [], others
    assert len(others) <= 3, others  # what the stopped worker had taken


def test_an_answer_has_the_number_of_its_request(live: Live) -> None:
    got = live.inference.predict("faults", b"1")
    number = got.request.headers[REQUEST_ID]
    # our own host knows its workers' answers by their frames, and keeps the number to itself
    assert got.headers.get(REQUEST_ID) == (None if live.record.kind == "slotwise" else number)


def test_clients_that_leave_cost_their_batch_mates_nothing(live: Live) -> None:
    before = live.pids("faults")
    ports, headers = live.record.ports, ""
    for name, value in live.inference_headers().items():
        headers += f"{name}: {value}\r\n"
    request = f"POST /predictions/faults HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: 1\r\n\r\n9"
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", ports.inference)) as leaving:
            leaving.sendall(request.encode())
            time.sleep(0.05)
    answers = burst(live.inference, "faults", [b"1", b"2", b"3", b"4"])
    assert all(right(n, got) for n, got in enumerate(answers, start=1))
    assert live.pids("faults") == before


def test_versions_live_beside_each_other_on_torchserve(live: Live, store: Path, tmp_path: Path) -> None:
    if live.record.kind == "mms":
        pytest.skip("MMS has no versions")
    second = build_handler("quick", tmp_path, tmp_path / "work", version="2.0")
    second.replace(store / "quick2.mar")
    with live.registered("quick"):
        live.management.register("quick2.mar", batch_size=3, max_batch_delay=9, initial_workers=1)
        live.management.wait_ready("quick", version="2.0")
        assert {model.version: model.batch_size for model in live.management.describe_all("quick")} == {"1.0": 4, "2.0": 3}
        assert live.management.describe("quick").version == "1.0"
        assert live.inference.predict("quick", b"1", version="2.0").json() == {"answer": 3.0}
        live.management.unregister("quick", "2.0")
        assert [model.version for model in live.management.describe_all("quick")] == ["1.0"]
