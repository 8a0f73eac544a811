"""The host for Triton's python backend, with a stand-in for the backend; the real one is in tests/server/test_triton.py."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.inspection import extract
from slotwise.worker.hosts.child import WorkerFailed
from slotwise.worker.hosts.triton import TritonHost, environment
from tests.server.conftest import build_handler
from tests.worker import triton_backend as backend
from tests.worker.triton_backend import InferenceRequest

Start = Callable[..., TritonHost]


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    store, work = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("work")
    archives = {name: build_handler(name, store, work, handler=name) for name in ("faults", "killers")}
    return {name: extract(path, work / "extracted" / name) for name, path in archives.items()}


@pytest.fixture
def start(extracted: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("SLOTWISE_STATE", str(tmp_path))
    hosts = []

    def started(model: str = "faults", **parameters: str) -> TritonHost:
        host = TritonHost(backend, backend.arguments(extracted[model], **parameters), extracted[model])
        hosts.append(host)
        return host

    yield started
    for host in hosts:
        host.close()


def ask(host: TritonHost, *bodies: bytes) -> list[tuple[int, Any]]:
    """The status and the JSON that each body gets, all in one batch."""
    told = [response.told() for response in host.execute([InferenceRequest(body) for body in bodies])]
    return [(status, json.loads(body)) for status, _, body in told]


def test_every_request_keeps_its_slot(start: Start) -> None:
    host = start()
    answers = ask(host, b"1", b"raise", b"2", b"text", b"", b"nan", b"3", b"4")
    assert [status for status, _ in answers] == [200, 500, 200, 400, 400, 500, 200, 200]
    assert [body["answer"] for status, body in answers if status == 200] == [3.0, 5.0, 7.0, 9.0]
    assert backend.NUMBERS["SlotErrors", "400"] >= 2
    assert backend.NUMBERS["BatchFill", ""] == 100


def test_headers_go_in_and_come_out(start: Start) -> None:
    host = start()
    given = {"X-Request-Id": "a", "x-deadline-ms": "1"}
    late, plain = host.execute([InferenceRequest(b"1", headers=given), InferenceRequest(b"1", id_="b")])
    assert late.told()[0] == 504
    assert late.error.code == backend.TritonError.UNAVAILABLE
    status, headers, _ = plain.told()
    assert (status, headers["content-type"], headers["x-batch-size"], headers["x-batch-slot"]) == (
        200,
        "application/json",
        "2",
        "1",
    )


def test_what_is_no_request_is_refused_alone(start: Start) -> None:
    host = start()
    requests = [
        InferenceRequest(b"1", headers=b"{"),
        InferenceRequest(b"1", headers=b'{"a":' * 200_000 + b"1" + b"}" * 200_000),
        InferenceRequest(b"1", b"2"),
        InferenceRequest(b"7"),
        InferenceRequest(b""),
        InferenceRequest(b"1", headers={"x-request-id": "a\nERROR forged"}),
        InferenceRequest(b"1", id_="a\nERROR forged"),
        InferenceRequest(b"1", headers={"x-deadline-ms": 1}),  # a number would be left out, and this answered
    ]
    told = [response.told() for response in host.execute(requests)]
    assert [status for status, _, _ in told] == [400, 400, 400, 200, 400, 400, 400, 400]
    assert json.loads(told[3][2]) == {"answer": 15.0}
    assert told[3][1]["x-batch-size"] == "2"


def test_a_dead_engine_is_replaced_and_nothing_is_lost(start: Start, tmp_path: Path) -> None:
    host = start()
    file = next((tmp_path / "instances" / "faults").iterdir())
    before = file.read_text()
    assert [status for status, _ in ask(host, b"1", b"die")] == [503, 503]
    assert ask(host, b"1") == [(200, {"answer": 3.0})]
    assert file.read_text() != before


def test_a_worker_that_crashes_costs_the_batch_in_hand(start: Start) -> None:
    host = start("killers")
    answers = ask(host, b"1", b"exit 1")
    assert [(status, body["message"]) for status, body in answers] == [(500, "Worker died.")] * 2
    assert ask(host, b"1") == [(200, {"answer": 3.0})]
    host.worker._current.child.kill()  # between two batches
    host.worker._current.child.wait()
    assert ask(host, b"2") == [(200, {"answer": 5.0})]


def test_a_worker_that_takes_too_long_is_ended(start: Start) -> None:
    host = start(response_timeout_s="1")
    assert [status for status, _ in ask(host, b"sleep 600")] == [500]
    deadline = time.monotonic() + 120
    while ask(host, b"1") != [(200, {"answer": 3.0})]:  # one that a busy machine keeps waiting for a second is ended as well
        assert time.monotonic() < deadline


def test_a_worker_that_does_not_start_again_is_a_503(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    host = start()
    plain, host.worker._start = host.worker._start, broken
    assert [status for status, _ in ask(host, b"die")] == [503]
    (status, body), *_ = ask(host, b"1")
    assert (status, body["message"]) == (503, "the worker does not start")
    host.worker._start = plain
    deadline = time.monotonic() + 120
    while ask(host, b"1") != [(200, {"answer": 3.0})]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_host_that_is_closed_while_it_waits_to_start_again_starts_nothing(start: Start) -> None:
    host = start()
    starts: list[int] = []

    def refuses() -> Any:
        starts.append(1)
        raise WorkerFailed("no weights")

    host.worker._start = refuses  # type: ignore[method-assign]
    host.worker._current.kill()
    deadline = time.monotonic() + 120
    while len(starts) < 2:  # the pause before the third is a second and a half, or more
        assert time.monotonic() < deadline
        time.sleep(0.01)
    host.close()
    assert len(starts) == 2
    assert not host.worker._thread.is_alive()


def test_a_worker_gets_the_gpu_that_triton_assigned_and_what_the_server_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_PROFILE", "mine")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    given = {"SLOTWISE_PROFILE": "cuda", "SLOTWISE_OTHER": "x", "response_timeout_s": "7"}
    kind = {"model_instance_kind": "GPU", "model_instance_device_id": "1"}
    environ = environment(kind, given)
    assert (environ["CUDA_VISIBLE_DEVICES"], environ["SLOTWISE_PROFILE"], environ["SLOTWISE_OTHER"]) == ("GPU-b", "mine", "x")
    assert "response_timeout_s" not in environ
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert environment(kind, given)["CUDA_VISIBLE_DEVICES"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in environment({"model_instance_kind": "CPU"}, given)


def broken() -> Any:
    raise ValueError("no weights")


def test_a_handler_that_does_not_start_says_why(extracted: dict[str, Path], tmp_path: Path) -> None:
    arguments = backend.arguments(extracted["faults"], SLOTWISE_PROFILE="no-such-profile")
    with pytest.raises(WorkerFailed, match="SLOTWISE_PROFILE is 'no-such-profile'"):
        TritonHost(backend, arguments, extracted["faults"])
