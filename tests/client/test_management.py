"""The clients against an API made by hand: both servers' dialects, their refusals, and tokens that change."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest

from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.client.api import READ_S, TIMEOUT_S
from slotwise.client.inference import InferenceClient
from slotwise.client.live_model import LiveWorker, live_model
from slotwise.client.management import ManagementClient, RegisteredModel
from slotwise.client.tokens import token
from slotwise.commands.management import scale_model
from slotwise.errors import SlotwiseError
from slotwise.server.lifecycle import Ports
from slotwise.server.record import Kind, ServerRecord
from tests.support.records import server_record

Answer = Callable[[httpx.Request], httpx.Response]
REFUSED = {"code": 400, "type": "InvalidKeyException", "message": "Token Authentication failed."}


@pytest.fixture
def torchserve(tmp_path: Path) -> ServerRecord:
    write_keys(tmp_path, "first")
    return record(tmp_path, "torchserve")


def record(folder: Path, kind: Kind) -> ServerRecord:
    return server_record(folder, kind, name="x")


def write_keys(folder: Path, key: str, minutes: float = 60) -> None:
    ends = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")
    keys = {kind: {"key": f"{key}-{kind}", "expiration time": ends} for kind in ("inference", "management")}
    (folder / "key_file.json").write_text(json.dumps({**keys, "API": {"key": "api"}}))


def management(to: ServerRecord, answer: Answer, timeout_s: float = TIMEOUT_S) -> ManagementClient:
    return ManagementClient(to, timeout_s=timeout_s, transport=httpx.MockTransport(answer))


def described(**changes: Any) -> dict[str, Any]:
    worker = {"id": "9000", "status": "READY", "memoryUsage": 0, "pid": 4_000_000, "gpu": False}
    return {"modelName": "m", "modelVersion": "1.0", "batchSize": 8, "maxBatchDelay": 5, "workers": [worker], **changes}


def test_describe_is_a_list_on_torchserve_and_an_object_on_mms(torchserve: ServerRecord, tmp_path: Path) -> None:
    with management(torchserve, lambda request: httpx.Response(200, json=[described()])) as client:
        model = client.describe("m")
    assert (model.name, model.batch_size, model.max_batch_delay, model.ready_workers) == ("m", 8, 5, 1)
    with management(record(tmp_path, "mms"), lambda request: httpx.Response(200, json=described())) as client:
        model = client.describe("m")
    assert (model.batch_size, model.ready_workers) == (8, 0)  # MMS says READY: no process of it has loaded the model
    assert model.workers[0].status == "STARTING"


def test_mms_is_not_told_to_change_another_version_than_the_one_that_is_named(tmp_path: Path) -> None:
    """It reads no version, and would take away the one that it has."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        return httpx.Response(200, json={**described(), "modelVersion": "1.0"})

    with management(record(tmp_path, "mms"), answer) as client:
        for change in (lambda: client.unregister("m", "9.9"), lambda: client.scale("m", 2, "9.9")):
            with pytest.raises(SlotwiseError, match=r"no version 9.9 of m: Multi Model Server has 1.0"):
                change()
        assert asked == ["GET", "GET"]
        client.unregister("m", "1.0")
        client.unregister("m")
    assert asked[2:] == ["GET", "DELETE", "DELETE"]


@pytest.mark.parametrize("kind", ["mms", "triton"])
def test_a_server_that_reads_no_version_is_not_asked_for_one(tmp_path: Path, kind: Kind) -> None:
    write_keys(tmp_path, "first")
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={}))
    with InferenceClient(record(tmp_path, kind), transport=transport) as client:
        with pytest.raises(SlotwiseError, match=r"serves one version of a model, and cannot be asked for 9.9"):
            client.predict("m", b"x", version="9.9")
        assert client.predict("m", b"x") is not None


def test_describe_joins_what_the_worker_reported(torchserve: ServerRecord) -> None:
    (torchserve.state_dir / "workers").mkdir()
    report = {"profile": "cpu", "engine": "onnxruntime", "precision": "fp32", "device": "cpu", "threads": 2, "padding": "none"}
    (torchserve.state_dir / "workers" / "4000000.json").write_text(json.dumps(report))
    with management(torchserve, lambda request: httpx.Response(200, json=[described()])) as client:
        model = client.describe("m")
    assert (model.profile, model.engine, model.threads) == ("cpu", "onnxruntime", 2)


def test_who_only_reads_does_not_wait_as_long_as_who_changes_something(torchserve: ServerRecord) -> None:
    waits: dict[str, float] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        waits[request.method] = request.extensions["timeout"]["read"]
        return httpx.Response(200, json={"models": []})

    with management(torchserve, answer) as client:
        client.list()
        client.scale("m", 2)
    assert waits == {"GET": READ_S, "PUT": TIMEOUT_S}
    with management(torchserve, answer, timeout_s=1.0) as client:
        client.list()
    assert waits["GET"] == 1.0


@pytest.mark.parametrize(("kind", "timeout"), [("torchserve", "90"), ("mms", "2")])
def test_a_timeout_is_given_in_seconds_whatever_the_server_wants(tmp_path: Path, kind: Kind, timeout: str) -> None:
    write_keys(tmp_path, "first")
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"status": "registered"})

    with management(record(tmp_path, kind), answer) as client:
        client.register("m.mar", batch_size=4, response_timeout=90)
    assert dict(seen[0].url.params) == {
        "url": "m.mar",
        "batch_size": "4",
        "response_timeout": timeout,
        "synchronous": "false",
    }


def test_a_whole_delay_is_sent_as_a_whole_number(torchserve: ServerRecord) -> None:
    """TorchServe takes "5.0" for no number, and its own default instead."""
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.params["max_batch_delay"])
        return httpx.Response(200, json={})

    with management(torchserve, answer) as client:
        client.register("digits.mar", max_batch_delay=5.0)
        with pytest.raises(SlotwiseError, match="whole milliseconds"):
            client.register("digits.mar", max_batch_delay=0.5)
    assert seen == ["5"]


def test_a_list_of_many_pages_is_one(torchserve: ServerRecord) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        first = "next_page_token" not in request.url.params
        page = {"models": [{"modelName": "a" if first else "b", "modelUrl": "x.mar"}]}
        return httpx.Response(200, json={**page, "nextPageToken": "1"} if first else page)

    with management(torchserve, answer) as client:
        assert client.list() == (RegisteredModel("a", "x.mar"), RegisteredModel("b", "x.mar"))


@pytest.mark.parametrize(
    ("status", "body", "message", "hint"),
    [
        (404, {"message": "Model not found: m"}, "cannot describe m: Model not found: m (HTTP 404)", "slotwise list"),
        (405, {"message": "Not allowed"}, "cannot describe m: Not allowed (HTTP 405)", "model_api"),
        (409, {"message": "Already there"}, "cannot describe m: Already there (HTTP 409)", "unregister"),
        (500, "<html>oops", "cannot describe m: <html>oops (HTTP 500)", "logs"),
        (503, "", "cannot describe m: Service Unavailable (HTTP 503)", "logs"),
    ],
)
def test_a_refusal_is_one_sentence_with_the_servers_own_words(
    torchserve: ServerRecord, status: int, body: Any, message: str, hint: str
) -> None:
    answer = httpx.Response(status, json=body) if isinstance(body, dict) else httpx.Response(status, text=body)
    with management(torchserve, lambda request: answer) as client, pytest.raises(SlotwiseError) as raised:
        client.describe("m")
    assert raised.value.message == message
    assert hint in raised.value.hint


def test_no_server(torchserve: ServerRecord) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused")

    with management(torchserve, refuse) as client, pytest.raises(SlotwiseError, match="no server answers at"):
        client.list()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ConcurrentModificationException", ""),
        ("InternalServerException", 'Cannot invoke "org.pytorch.serve.job.Job.isControlCmd()" because "job" is null'),
    ],
)
def test_a_scale_that_meets_torchserves_race_is_asked_again(torchserve: ServerRecord, kind: str, message: str) -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        raced = {"code": 500, "type": kind, "message": message}
        return httpx.Response(500, json=raced) if len(asked) < 3 else httpx.Response(202, json={"status": "ok"})

    with management(torchserve, answer) as client:
        client.scale("digits", 2)
    assert asked == ["PUT"] * 3


def test_names_are_quoted(torchserve: ServerRecord) -> None:
    paths: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path)
        return httpx.Response(200, json=[described()])

    with management(torchserve, answer) as client:
        client.describe("../token?type=x")
    assert paths == [b"/models/..%2Ftoken%3Ftype%3Dx"]


def test_a_refused_token_is_read_again_before_anything_else(torchserve: ServerRecord) -> None:
    used: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        used.append(request.headers["Authorization"])
        if used[-1] == "Bearer first-inference":
            write_keys(torchserve.state_dir, "second")  # somebody else has renewed it meanwhile
            return httpx.Response(400, json=REFUSED)
        return httpx.Response(200, text="fine")

    with InferenceClient(torchserve, transport=httpx.MockTransport(answer)) as client:
        assert client.predict("m", b"").text == "fine"
    assert used == ["Bearer first-inference", "Bearer second-inference"]


def test_a_token_that_stays_refused_is_not_tried_again(torchserve: ServerRecord) -> None:
    calls: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(400, json=REFUSED)

    with InferenceClient(torchserve, transport=httpx.MockTransport(answer)) as client:
        assert client.predict("m", b"").status_code == 400
    assert len(calls) == 1


def test_an_expired_token_is_renewed_with_the_key_that_does_not_expire(
    torchserve: ServerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_keys(torchserve.state_dir, "old", minutes=-1)

    def renew(url: str, **given: Any) -> httpx.Response:
        assert given["headers"] == {"Authorization": "Bearer api"}
        assert given["params"] == {"type": "management"}
        write_keys(torchserve.state_dir, "new")
        return httpx.Response(200, request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", renew)
    assert token(torchserve, "management") == "new-management"


def test_a_load_begins_with_a_token_that_lasts(torchserve: ServerRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    def renew(url: str, **given: Any) -> httpx.Response:
        write_keys(torchserve.state_dir, "new")
        return httpx.Response(200, request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", renew)
    write_keys(torchserve.state_dir, "old", minutes=1)
    quick, long = (LoadPlan(seconds=seconds, warm_up_s=1.0, timeout_s=2.0) for seconds in (1.0, 60.0))
    assert Target.of(torchserve, "m", quick.token_s).headers == {"Authorization": "Bearer old-inference"}
    assert Target.of(torchserve, "m", long.token_s).headers == {"Authorization": "Bearer new-inference"}


def test_threads_that_find_it_expired_renew_it_once(torchserve: ServerRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    write_keys(torchserve.state_dir, "old", minutes=-1)
    renewed: list[str] = []

    def renew(url: str, **given: Any) -> httpx.Response:
        renewed.append(url)
        time.sleep(0.01)
        write_keys(torchserve.state_dir, f"new{len(renewed)}")
        return httpx.Response(200, request=httpx.Request("GET", url))

    def answer(request: httpx.Request) -> httpx.Response:
        time.sleep(0.005)
        valid = json.loads((torchserve.state_dir / "key_file.json").read_text())["inference"]["key"]
        known = request.headers["Authorization"] == f"Bearer {valid}"
        return httpx.Response(200) if known else httpx.Response(400, json=REFUSED)

    monkeypatch.setattr(httpx, "get", renew)
    with InferenceClient(torchserve, transport=httpx.MockTransport(answer)) as client, ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda _: client.predict("m", b"").status_code, range(16)))
    assert (statuses, len(renewed)) == ([200] * 16, 1)


def test_a_valid_token_is_not_renewed_and_mms_has_none(torchserve: ServerRecord, tmp_path: Path) -> None:
    assert token(torchserve, "inference") == "first-inference"
    assert token(record(tmp_path, "mms"), "inference") is None
    (tmp_path / "key_file.json").unlink()
    with pytest.raises(SlotwiseError, match="tokens cannot be read"):
        token(torchserve, "inference")


@pytest.mark.parametrize(("ready", "expected"), [([1, 1], True), ([1, 0], False), ([], False)])
def test_ready_is_true_only_when_every_model_has_a_ready_worker(
    torchserve: ServerRecord, ready: list[int], expected: bool
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/models":
            return httpx.Response(200, json={"models": [{"modelName": str(i), "modelUrl": "x"} for i in range(len(ready))]})
        up = ready[int(request.url.path.rpartition("/")[2])]
        worker = {"id": "9000", "status": "READY" if up else "UNLOADING", "pid": 4_000_000 if up else -1}
        return httpx.Response(200, json=[described(workers=[worker])])

    with management(torchserve, answer) as client:
        assert client.ready() is expected


def test_scale_warns_where_a_container_has_fewer_cores(
    torchserve: ServerRecord, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live = replace(live_model(described(), torchserve), device="cpu", threads=1)
    calls = {"scale": lambda *_: None, "wait_ready": lambda *_, **__: live, "describe": lambda *_: live}
    client = SimpleNamespace(record=torchserve, **calls)
    monkeypatch.setattr("slotwise.client.management.ManagementClient", lambda record: nullcontext(client))
    monkeypatch.setattr("slotwise.server.lifecycle.need", lambda name: torchserve)
    monkeypatch.setattr("slotwise.worker.environment.cores.available_cores", lambda: 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(64))
    scale_model("m", 2)
    assert "2 workers x 1 threads fight for 1 cores" in capsys.readouterr().err


class Late(BaseHTTPRequestHandler):
    """Gives the body "1" up with a 500, and answers it after all on the same connection. Any other body it echoes."""

    protocol_version = "HTTP/1.1"
    connections: ClassVar = set[int]()
    late = b""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        said = b"500 Worker died" if body == b"1" else b"200 OK"
        self.wfile.write(self.late + b"HTTP/1.1 %b\r\ncontent-length: 1\r\n\r\n%b" % (said, body))
        self.late = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1" if body == b"1" else b""
        self.connections.add(self.client_address[1])


def test_a_request_that_its_server_gave_up_and_answers_after_all_leaves_the_next_ones_answer_alone(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Late) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = replace(record(tmp_path, "mms"), ports=replace(Ports(), inference=server.server_port))
        with InferenceClient(at, timeout_s=10) as client:
            answers = [client.predict("digits", body) for body in (b"2", b"1", b"3", b"4", b"1")]
        server.shutdown()
    assert [(got.status_code, got.content) for got in answers] == [
        (200, b"2"),
        (500, b"1"),
        (200, b"3"),
        (200, b"4"),
        (500, b"1"),
    ]
    assert len(Late.connections) == 2, "a connection that answers is used again"


class OneLate(BaseHTTPRequestHandler):
    """Answers the first request twice, and is one answer late from then on, always with 200: so TorchServe was seen."""

    protocol_version = "HTTP/1.1"
    before = b""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        named = b"x-batch-request-id: %b\r\ncontent-length: 1\r\n\r\n%b" % (self.headers["x-batch-request-id"].encode(), body)
        answer = b"HTTP/1.1 200 OK\r\n" + named
        self.wfile.write(self.before or answer)
        self.before = answer


def test_the_answer_to_another_request_is_nobodys(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), OneLate) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = replace(record(tmp_path, "torchserve"), ports=replace(Ports(), inference=server.server_port))
        write_keys(tmp_path, "first")
        with InferenceClient(at, timeout_s=10) as client:
            assert client.predict("digits", b"1").content == b"1"
            with pytest.raises(SlotwiseError, match="the answer to another request"):
                client.predict("digits", b"2")
            assert client.predict("digits", b"3").content == b"3", "on a new connection"
        server.shutdown()


def test_where_ray_scales_a_model_it_is_ready_with_as_many_as_that_chooses(torchserve: ServerRecord) -> None:
    """Whoever waited for the number that it was registered with would wait for ever."""
    ready = LiveWorker(id="r", pid=1, status="READY", memory_bytes=0, gpu=False, got={})
    for kind, least, most, workers, whether in (
        ("ray", 1, 3, [ready], True),
        ("ray", 1, 3, [], False),
        ("ray", 2, 3, [ready], False),
        ("ray", 1, 3, [ready, replace(ready, status="STARTING")], False),
        ("ray", 2, 2, [ready], False),
        ("ray", 2, 2, [ready, ready], True),
        ("slotwise", 1, 3, [ready], False),
    ):
        record = replace(torchserve, kind=kind)
        live = live_model({**described(), "minWorkers": least, "maxWorkers": most, "workers": []}, record)
        assert replace(live, workers=tuple(workers)).has(2) == whether, (kind, least, most, workers)
