"""Deployments of ours, as people start, ask, look at and stop them."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from slotwise.profiles.ports import Ports
from tests.drop_in.stores import archive, plain_store
from tests.support.certificates import certificate
from tests.support.deployments import OURS, Deployment, configured, deployed, environment
from tests.support.torchserve_client import client_of
from tests.support.waiting import PATIENCE_S, until

PROGRAM = [sys.executable, "-m", OURS]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_store(tmp_path_factory.mktemp("s") / "store")


@pytest.fixture(scope="module")
def running(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Every archive of the store; metrics as Prometheus wants them."""
    options = ("--enable-model-api", "--models", "echo.mar,headers.mar,errors.mar,folded,balled.tar.gz,gone.mar,junk.mar")
    lines = ("default_workers_per_model=1", "metrics_mode=prometheus", "models=" + json.dumps(BATCHED))
    with deployed(OURS, tmp_path_factory.mktemp("d"), store, lines, options) as deployment:
        for model in ("echo", "headers", "errors", "folded", "balled"):
            deployment.wait_ready(model)
        until(lambda: "Model server started." in deployment.printed(), "it does not start")  # the first snapshot is there
        yield deployment


BATCHED = {"errors": {"1.0": {"defaultVersion": True, "marName": "errors.mar", "batchSize": 8, "maxBatchDelay": 200}}}


def asked(deployment: Deployment, path: str, body: bytes = b"x", method: str = "POST", **headers: str) -> httpx.Response:
    about = {**deployment.headers("inference"), **{name.replace("_", "-"): value for name, value in headers.items()}}
    return deployment.asked(method, deployment.inference + path, headers=about, content=body)


def test_archives_of_every_form_answer_and_what_is_none_is_logged(running: Deployment) -> None:
    for model in ("echo", "folded", "balled"):
        assert asked(running, f"/predictions/{model}", b"text", content_type="text/plain").json()["value"] == "text"
    log = running.folder / "logs" / "ts_log.log"
    until(lambda: "Failed to load model: junk.mar" in log.read_text(), "no word of what is no archive")
    assert "Failed to load model: gone.mar: Model not found at: gone.mar" in log.read_text()


def test_settings_come_from_the_configuration(running: Deployment) -> None:
    (described,) = running.call("GET", "/models/errors").json()
    assert (described["batchSize"], described["maxBatchDelay"], described["loadedAtStartup"]) == (8, 200, True)
    assert re.fullmatch(r"9\d{3}", described["workers"][0]["id"])
    (plain,) = running.call("GET", "/models/echo").json()
    assert (plain["batchSize"], plain["maxBatchDelay"], plain["responseTimeout"]) == (1, 100, 120)


def test_one_bad_request_of_eight_costs_nobody_else_an_answer(running: Deployment) -> None:
    bodies = [b"boom" if i == 3 else b"good %d" % i for i in range(8)]
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda body: asked(running, "/predictions/errors", body), bodies * 4))
    for body, answer in zip(bodies * 4, answers, strict=True):
        assert (answer.status_code, answer.text if body != b"boom" else "") == (
            (200, body.decode()) if body != b"boom" else (500, "")
        )
    error = next(answer.json() for answer in answers if answer.status_code == 500)
    assert error == {"code": 500, "type": "InternalServerException", "message": "the handler failed on this request"}


def test_what_a_handler_sets_reaches_its_client_and_no_secret_reaches_the_handler(running: Deployment) -> None:
    answer = asked(running, "/predictions/headers", x_status="418", color="red")
    assert (answer.status_code, answer.text, answer.headers["x-made-by"]) == (418, "red", "headers")
    assert answer.headers["content-language"] == "en"


def test_metrics_have_torchserves_names_and_its_comma(running: Deployment) -> None:
    before = numbers(running)
    asked(running, "/predictions/echo")
    asked(running, "/predictions/nobody")
    after = numbers(running)
    host = os.uname().nodename
    assert after[f'Requests2XX{{Level="Host",Hostname="{host}",}}'] > before.get(
        f'Requests2XX{{Level="Host",Hostname="{host}",}}', 0
    )
    assert after[f'Requests4XX{{Level="Host",Hostname="{host}",}}'] > before.get(
        f'Requests4XX{{Level="Host",Hostname="{host}",}}', 0
    )
    count = f'ts_inference_requests_total{{model_name="echo",model_version="default",hostname="{host}",}}'
    assert after[count] == before.get(count, 0) + 1
    assert any(name.startswith('WorkerLoadTime{WorkerName="W-90') for name in after)
    text = httpx.get(f"{running.metrics}/metrics?name[]=Requests2XX", trust_env=False).text
    assert text.splitlines()[:2] == [
        "# HELP Requests2XX Torchserve prometheus counter metric with unit: Count",
        "# TYPE Requests2XX counter",
    ]


def numbers(deployment: Deployment) -> dict[str, float]:
    lines = httpx.get(f"{deployment.metrics}/metrics", trust_env=False).text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_the_logs_are_torchserves(running: Deployment) -> None:
    asked(running, "/predictions/echo?x=1")
    logs = running.folder / "logs"
    access = re.compile(
        r'^[\d-]+T[\d:]+,\d{3} - /127\.0\.0\.1:\d+ "POST /predictions/echo\?x=1 HTTP/1\.1" 200 \d+$', re.MULTILINE
    )
    until(lambda: access.search((logs / "access_log.log").read_text()), "the request is in no log")
    assert sorted(file.name for file in logs.glob("*.log")) == [
        *("access_log.log", "model_log.log", "model_metrics.log", "ts_log.log", "ts_metrics.log")
    ]
    server = (logs / "ts_log.log").read_text()
    assert re.search(
        r"\[DEBUG\] main \S+WorkerThread - W-9\d{3}-echo_1\.0 State change WORKER_STARTED -> WORKER_MODEL_LOADED", server
    )
    until(lambda: "Model server started." in running.printed(), "it does not say that it has started")
    assert (running.folder / "key_file.json").stat().st_mode & 0o077 == 0


def test_a_handler_that_cannot_start_is_in_the_log_with_its_traceback(running: Deployment) -> None:
    answer = running.call("POST", "/models", url="never.mar", initial_workers="1", synchronous="true")
    assert (answer.status_code, answer.json()["type"]) == (500, "InternalServerException")
    logs = running.folder / "logs"
    until(lambda: "RuntimeError: this handler never starts" in (logs / "model_log.log").read_text(), "no traceback")
    until(lambda: "Backend worker error\norg.pytorch.serve.wlm.Worker" in (logs / "ts_log.log").read_text(), "no error")
    refused = asked(running, "/predictions/never")
    assert (refused.status_code, refused.json()["type"]) == (503, "ServiceUnavailableException")
    assert running.call("DELETE", "/models/never").status_code == 200


def test_snapshots_follow_every_change(running: Deployment) -> None:
    config = running.folder / "logs" / "config"
    before = set(config.iterdir())
    running.call("PUT", "/models/echo", min_worker="2", synchronous="true")
    (new,) = set(config.iterdir()) - before
    assert re.fullmatch(r"\d{17}-snapshot\.cfg", new.name)
    assert '"minWorkers"\\: 2' in new.read_text()
    running.call("PUT", "/models/echo", min_worker="1", synchronous="true")


def test_a_worker_that_is_killed_is_replaced_and_nobody_loses_anything(running: Deployment) -> None:
    (described,) = running.call("GET", "/models/echo").json()
    os.kill(described["workers"][0]["pid"], signal.SIGKILL)
    assert asked(running, "/predictions/echo", b"still", content_type="text/plain").json()["value"] == "still"
    log = running.folder / "logs" / "ts_log.log"
    until(lambda: "Auto recovery start timestamp" in log.read_text(), "no word of it")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "d"
    folder.mkdir()
    return folder


def running_pid(folder: Path) -> int | None:
    """The pid of the server that runs, as its file has it."""
    try:
        pid = int((folder / "tmp" / ".model_server.pid").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if psutil.pid_exists(pid) else None


def words(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """One command in a deployment's folder. Its output is a file: who is started goes on writing to `said`."""
    with (folder / ("said" if "--start" in options and running_pid(folder) is None else "answer")).open("w+") as said:
        done = subprocess.run(
            [*PROGRAM, *options],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            timeout=90,
        )
        said.seek(0)
        return subprocess.CompletedProcess(done.args, done.returncode, said.read(), "")


def test_start_returns_stop_waits_and_a_second_start_does_no_harm(place: Path, store: Path) -> None:
    ports = Ports.free()
    configured(place, ports, ("default_workers_per_model=1",))
    start = ("--start", "--model-store", str(store), "--ts-config", "config.properties", "--models", "echo.mar", "--dt")
    assert words(place, "--stop", "--foreground").stdout.strip() == "TorchServe is not currently running."
    assert words(place, *start).returncode == 0
    deployment = Deployment(place, ports)
    try:
        until(lambda: "Model server started." in (place / "said").read_text(), "it does not start")
        again = words(place, "--start", "--model-store", str(store), "--ncs")
        assert (again.returncode, again.stdout.strip()) == (
            1,
            "TorchServe is already running, please use torchserve --stop to stop TorchServe.",
        )
        deployment.wait_ready("echo")
        assert deployment.asked("POST", f"{deployment.inference}/predictions/echo", content=b"x").status_code == 200
        assert not (place / "key_file.json").exists()
        assert deployment.call("POST", "/models", url="headers.mar").json() == {
            "code": 405,
            "type": "MethodNotAllowedException",
            "message": "Requested method is not allowed, please refer to API document.",
        }
        workers = [one["pid"] for one in deployment.call("GET", "/models/echo").json()[0]["workers"]]
    finally:
        stopped = words(place, "--stop", "--foreground")
    assert stopped.stdout.strip() == "TorchServe has stopped."
    assert not [pid for pid in workers if psutil.pid_exists(pid)]
    assert list((place / "tmp").iterdir()) == []
    assert [file.name[17:] for file in sorted((place / "logs" / "config").iterdir())] == ["-startup.cfg", "-shutdown.cfg"]


def test_without_a_configuration_it_starts_from_its_newest_snapshot(place: Path, store: Path) -> None:
    lines = ("default_workers_per_model=1",)
    with deployed(OURS, place, store, lines, ("--enable-model-api", "--models", "first=echo.mar")) as deployment:
        deployment.call("POST", "/models", url="headers.mar", batch_size="3", initial_workers="1", synchronous="true")
        deployment.call("POST", "/models", url="echo-2.mar", model_name="first", initial_workers="0")
        deployment.call("PUT", "/models/first/2.0/set-default")
    (place / "config.properties").unlink()
    try:
        assert words(place, "--start").returncode == 0
        again = Deployment(place, deployment.ports)
        until(lambda: "Model server started." in (place / "said").read_text(), "it does not start")
        assert [one["modelName"] for one in again.call("GET", "/models").json()["models"]] == ["first", "headers"]
        assert again.call("GET", "/models/headers").json()[0]["batchSize"] == 3
        assert [one["modelVersion"] for one in again.call("GET", "/models/first/all").json()] == ["2.0", "1.0"]
    finally:
        words(place, "--stop", "--foreground")


def test_a_snapshot_whose_archive_is_gone_starts_nothing(place: Path, store: Path) -> None:
    with deployed(OURS, place, store, (), ("--models", "echo.mar")) as deployment:
        until(lambda: "Model server started." in deployment.printed(), "it does not start")
    snapshot = max((place / "logs" / "config").iterdir())
    snapshot.write_text(snapshot.read_text().replace("echo.mar", "gone.mar"))
    (place / "config.properties").unlink()
    words(place, "--start")
    until(lambda: "Failed to start from snapshot" in (place / "said").read_text(), "no word of it")
    until(lambda: not (place / "tmp" / ".model_server.pid").exists(), "it goes on")


def test_a_killed_servers_leavings_are_cleared_away_by_the_next_start(place: Path, store: Path) -> None:
    configured(place, Ports.free())
    start = ("--start", "--model-store", str(store), "--ts-config", "config.properties", "--ncs", "--dt")
    words(place, *start)
    until(lambda: "Model server started." in (place / "said").read_text(), "it does not start")
    (left,) = (place / "tmp").glob("slotwise-torchserve-*")
    os.kill(int((place / "tmp" / ".model_server.pid").read_text().split()[0]), signal.SIGKILL)
    try:
        until(lambda: words(place, *start).returncode == 0, "it does not start again")
        until(lambda: "Model server started." in (place / "said").read_text(), "it does not start again")
        assert not left.exists()
    finally:
        words(place, "--stop", "--foreground")


def test_tokens_expire_and_new_ones_open(place: Path, store: Path) -> None:
    lines = ("token_expiration_min=0.2", "default_workers_per_model=1")
    with deployed(OURS, place, store, lines, ("--ncs", "--models", "echo.mar")) as deployment:
        first = deployment.headers("management")
        until(
            lambda: deployment.asked("GET", f"{deployment.management}/models", headers=first).status_code == 400,
            "it never ends",
        )
        url = f"{deployment.management}/token?type=management"
        assert deployment.asked("GET", url, headers=deployment.headers("API")).status_code == 200
        assert deployment.headers("management") != first
        assert deployment.call("GET", "/models").status_code == 200
        keys = json.loads((deployment.folder / "key_file.json").read_text())
        assert set(keys["management"]) == {"key", "expiration time"}
        assert set(keys["API"]) == {"key"}
    assert not (place / "key_file.json").exists()


def test_tls_comes_from_the_same_keys(place: Path, store: Path, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    lines = (f"certificate_file={cert}", f"private_key_file={key}", "default_workers_per_model=1")
    with deployed(OURS, place, store, lines, ("--ncs", "--models", "echo.mar"), scheme="https") as deployment:
        deployment.wait_ready("echo")
        assert asked(deployment, "/predictions/echo").status_code == 200
        assert deployment.asked("GET", f"{deployment.metrics}/metrics").status_code == 200


def test_logged_metrics_are_lines_and_legacy_has_three(place: Path, store: Path) -> None:
    lines = ("default_workers_per_model=1", "metrics_mode=legacy")
    with deployed(OURS, place, store, lines, ("--ncs", "--models", "echo.mar")) as deployment:
        deployment.wait_ready("echo")
        asked(deployment, "/predictions/echo")
        text = deployment.asked("GET", f"{deployment.metrics}/metrics").text
        assert [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")] == [
            *("ts_inference_requests_total", "ts_inference_latency_microseconds", "ts_queue_latency_microseconds")
        ]
        logged = deployment.folder / "logs" / "ts_metrics.log"
        line = re.compile(r"Requests2XX\.Count:1\.0\|#Level:Host\|#hostname:\S+,timestamp:\d{10}")
        until(lambda: line.search(logged.read_text()), "no line of it")
        until(lambda: "MemoryUsed.Megabytes:" in logged.read_text(), "the machine is not measured")
        handlers = deployment.folder / "logs" / "model_metrics.log"
        until(lambda: "PredictionTime.ms:" in handlers.read_text(), "no number of a handler")


def test_logs_that_cannot_be_written_stop_nothing(place: Path, store: Path) -> None:
    environ = {"LOG_LOCATION": "/proc/nowhere", "METRICS_LOCATION": "/proc/nowhere"}
    with deployed(OURS, place, store, (), ("--models", "echo.mar"), environ) as deployment:
        assert deployment.call("GET", "/models").status_code == 200
        until(lambda: "cannot be written" in deployment.printed(), "no word of the logs")


def test_pages_of_other_origins_may_call_where_the_deployment_says_so(place: Path, store: Path) -> None:
    lines = ("cors_allowed_origin=https://page.example", "cors_allowed_methods=GET, POST", "cors_allowed_headers=x-one")
    options = ("--ncs", "--models", "echo.mar")
    beforehand = {"origin": "https://page.example", "access-control-request-method": "POST"}  # brings no token
    with deployed(OURS, place, store, (*lines, "default_workers_per_model=1"), options) as one:
        one.wait_ready("echo")
        for answer in (
            asked(one, "/predictions/echo"),
            one.asked("OPTIONS", f"{one.inference}/predictions/echo", headers=beforehand),
            one.asked("OPTIONS", f"{one.management}/models", headers=beforehand),
            one.call("GET", "/models"),
        ):
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == "https://page.example"
            assert answer.headers["access-control-allow-headers"] == "x-one"


def test_variables_can_be_kept_from_handlers(place: Path, tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(
        "import os\n\ndef handle(data, context):\n    return data and [sorted(os.environ)] * len(data)\n"
    )
    archive(tmp_path / "store", "seen", str(tmp_path / "seen.py"))
    lines = ("blacklist_env_vars=SECRET_.*", "default_workers_per_model=1")
    options = ("--ncs", "--models", "seen.mar")
    with deployed(OURS, place, tmp_path / "store", lines, options, {"SECRET_ONE": "1", "OPEN_ONE": "1"}) as deployment:
        deployment.wait_ready("seen")
        names = asked(deployment, "/predictions/seen").json()
        assert "OPEN_ONE" in names
        assert "SECRET_ONE" not in names


def test_an_archive_by_url_comes_only_from_an_allowed_one_and_by_no_detour(place: Path, store: Path, tmp_path: Path) -> None:
    own = tmp_path / "store"
    own.mkdir()
    with served_files(store) as address:
        lines = (f"allowed_urls={address}/echo.*,{address}/away.*",)
        with deployed(OURS, place, own, lines, ("--ncs", "--enable-model-api")) as deployment:
            for elsewhere in (f"{address}/headers.mar", f"file://{store}/echo.mar"):
                assert deployment.call("POST", "/models", url=elsewhere).status_code == 404
            assert deployment.call("POST", "/models", url=f"{address}/away.mar").status_code == 400
            assert deployment.call("POST", "/models", url=f"{address}/echo.mar").status_code == 200
            assert deployment.call("POST", "/models", url=f"{address}/echo.mar").status_code == 500
            assert sorted(file.name for file in own.iterdir()) == ["echo.mar"]
            assert deployment.call("DELETE", "/models/echo").status_code == 200
            assert deployment.call("POST", "/models", url=f"{address}/echo.mar").status_code == 200
            (store / "echoes.mar").write_bytes(b"<html>")
            assert deployment.call("POST", "/models", url=f"{address}/echoes.mar").status_code == 400
            shutil.copy(store / "headers.mar", store / "echoes.mar")
            assert deployment.call("POST", "/models", url=f"{address}/echoes.mar").status_code == 200
            digest = re.compile(r"downloaded echo\.mar .* SHA-256 [0-9a-f]{64}")
            until(lambda: digest.search(deployment.printed()), "the digest is in no log")


def test_a_download_that_drips_holds_nobody_elses_registration_back(place: Path, store: Path, tmp_path: Path) -> None:
    (own := tmp_path / "store").mkdir()
    goes_on = threading.Event()
    with served_files(store, goes_on) as address:
        lines = (f"allowed_urls={address}/.*",)
        with deployed(OURS, place, own, lines, ("--ncs", "--enable-model-api")) as deployment, ThreadPoolExecutor() as pool:
            dripping = pool.submit(deployment.call, "POST", "/models", url=f"{address}/drips.mar")
            try:
                until(lambda: any(own.glob(".drips.mar*")), "the download does not begin")
                assert deployment.call("POST", "/models", url=f"{address}/drips.mar").status_code == 500
                assert deployment.call("POST", "/models", url=f"{address}/echo.mar").status_code == 200
                assert not dripping.done()
            finally:
                goes_on.set()
            assert dripping.result().status_code == 400
            assert sorted(file.name for file in own.iterdir()) == ["echo.mar"]


def test_it_ends_at_once_while_it_loads_its_models(place: Path, store: Path, tmp_path: Path) -> None:
    (own := tmp_path / "store").mkdir()
    goes_on, begun = threading.Event(), threading.Event()
    with served_files(store, goes_on, begun) as address:
        options = ("--ncs", "--models", f"drips={address}/drips.mar")
        with deployed(OURS, place, own, (f"allowed_urls={address}/.*",), options) as deployment:
            try:
                assert begun.wait(PATIENCE_S)
                os.kill(deployment.pid, signal.SIGTERM)
                until(lambda: psutil.Process(deployment.pid).status() == psutil.STATUS_ZOMBIE, "it does not end")
            finally:
                goes_on.set()


@contextlib.contextmanager
def served_files(folder: Path, goes_on: threading.Event | None = None, begun: threading.Event | None = None) -> Iterator[str]:
    """The files of a folder by HTTP; /away.mar leads to echo.mar, and /drips.mar, once it has begun, never comes whole."""

    class Files(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/away.mar":
                self.send_response(302)
                self.send_header("location", "/echo.mar")
                self.end_headers()
            elif self.path == "/drips.mar" and goes_on is not None:
                self.send_response(200)
                self.send_header("content-length", "1000")
                self.end_headers()
                self.wfile.write(b"PK")
                if begun is not None:
                    begun.set()
                goes_on.wait(PATIENCE_S)
            else:
                super().do_GET()

        def log_message(self, *said: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_without_guards_a_coroutine_answers_and_a_batch_fails_as_a_whole(place: Path, tmp_path: Path) -> None:
    archive(tmp_path / "store", "waits", "waits")
    settings = {"waits": {"1.0": {"defaultVersion": True, "marName": "waits.mar", "batchSize": 4, "maxBatchDelay": 1000}}}
    lines = (f"models={json.dumps(settings)}", "default_workers_per_model=1")
    options = ("--ncs", "--models", "waits.mar")
    with deployed(OURS, place, tmp_path / "store", lines, options) as guarded:
        why = "waits.mar cannot be guarded: handle is a coroutine"
        until(lambda: why in guarded.printed(), "no word of what cannot be guarded")
        assert guarded.call("GET", "/models").json() == {"models": []}
    with deployed(OURS, place, tmp_path / "store", lines, (*options, "--no-guard")) as bare:
        bare.wait_ready("waits")
        assert asked(bare, "/predictions/waits", b"one").text == "1 1"
        with ThreadPoolExecutor(5) as clients:
            bad = [b"boom", b"one", b"two", b"three"]
            until(lambda: {503} == together(bare, clients, bad), "never are four of them in one batch")
            assert together(bare, clients, bad[1:], described=True) == {200}
        assert asked(bare, "/predictions/waits", b"one").status_code == 200
        failed = asked(bare, "/predictions/waits", b"boom")
        assert failed.json() == {"code": 503, "type": "ServiceUnavailableException", "message": "Prediction failed"}


def test_a_models_own_response_timeout_holds_and_to_wait_takes_nothing_of_it(place: Path, tmp_path: Path) -> None:
    """The handler sleeps 2 s: longer than the server's second, and the last one has to wait for longer than the model's 7."""
    archive(tmp_path / "store", "waits", "waits")
    settings = {"waits": {"1.0": {"defaultVersion": True, "marName": "waits.mar", "batchSize": 1, "responseTimeout": 7}}}
    lines = (f"models={json.dumps(settings)}", "default_workers_per_model=1", "default_response_timeout=1")
    options = ("--ncs", "--no-guard", "--models", "waits.mar")
    with deployed(OURS, place, tmp_path / "store", lines, options) as one, ThreadPoolExecutor(5) as clients:
        one.wait_ready("waits")
        with client_of(one.ports, one.folder) as client:
            by_grpc = clients.submit(client.ask, "Predictions", model_name="waits", input={"data": b"slow"})
            statuses = clients.map(lambda _: asked(one, "/predictions/waits", b"slow").status_code, range(4))
            assert ([*statuses], by_grpc.result().code) == ([200] * 4, "OK")
        soon = str(int((time.time() + 0.5) * 1000))
        assert asked(one, "/predictions/waits", b"slow", x_deadline_ms=soon).status_code == 504


def together(deployment: Deployment, clients: ThreadPoolExecutor, bodies: Sequence[bytes], described: bool = False) -> set[int]:
    """The statuses of requests that come while the worker is busy, so that they wait for it together.

    described: the handler is asked what it is, too; this one cannot say it, and fails.
    """
    slow = clients.submit(asked, deployment, "/predictions/waits", b"slow")
    time.sleep(0.2)
    if described:
        clients.submit(deployment.call, "GET", "/models/waits", customized="true")
    statuses = set(clients.map(lambda body: asked(deployment, "/predictions/waits", body).status_code, bodies))
    assert slow.result().status_code == 200
    return statuses


def test_the_same_archive_can_be_registered_many_times_at_once(running: Deployment) -> None:
    def register(i: int) -> int:
        return running.call("POST", "/models", url="spare.mar", model_name=f"spare-{i}", initial_workers="0").status_code

    with ThreadPoolExecutor(6) as clients:
        assert list(clients.map(register, range(6))) == [200] * 6
    for i in range(6):
        running.call("DELETE", f"/models/spare-{i}")


def test_an_archive_may_be_a_link_out_of_the_store(running: Deployment, store: Path, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere.mar"
    real.write_bytes((store / "spare.mar").read_bytes())
    (store / "linked.mar").symlink_to(real)
    try:
        answer = running.call("POST", "/models", url="linked.mar", model_name="linked", initial_workers="0")
        assert answer.status_code == 200
        running.call("DELETE", "/models/linked")
    finally:
        (store / "linked.mar").unlink()
