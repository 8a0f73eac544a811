"""A host of our own and a gateway in its process, with real processes: what dies, what takes its place, and who loses what."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from slotwise.errors import SlotwiseError
from slotwise.frontend.process import GatewayRecord
from slotwise.server.record import ServerRecord
from tests.server.conftest import build_handler
from tests.support.running import command_lines
from tests.support.waiting import until

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

PATIENCE_S = 240.0


@dataclass
class Project:
    """A folder of its own, in which `slotwise` is typed."""

    folder: Path
    environ: dict[str, str]

    def slotwise(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "slotwise.cli", *arguments],
            cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    @property
    def server(self) -> ServerRecord:
        record = ServerRecord.load(self.folder / "state" / "default")
        assert record is not None
        return record

    @property
    def run_id(self) -> str:
        """The server's; "" while there is none."""
        record = ServerRecord.load(self.folder / "state" / "default")
        return record.run_id if record else ""

    @property
    def gateway(self) -> GatewayRecord:
        record = GatewayRecord.read(self.folder / "state" / "default" / "gateway.json")
        assert record is not None
        return record


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of the handler that breaks on request."""
    return build_handler("quick", tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, archive: Path) -> Iterator[Project]:
    """A host with one model and two workers, and a gateway before it: whatever a test does to them, they are there again."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "model_store").mkdir()
    (folder / "model_store" / archive.name).write_bytes(archive.read_bytes())
    with started_project(folder, [f"model_store/{archive.name}"], "--set", "initial_workers=2") as project:
        yield project


@contextmanager
def started_project(folder: Path, archives: Sequence[str], *options: str) -> Iterator[Project]:
    """A host that serves these archives of the folder, and a gateway before it."""
    environ = {**os.environ, "SLOTWISE_HOME": str(folder / "state"), "PYTHONPATH": str(Path(__file__).parents[2])}
    project = Project(folder, environ)
    try:
        project.slotwise("serve", *archives, "--server", "slotwise", "--port", "0", *options, "--force", "--detach")
        project.slotwise("gateway", "--port", "0", "--translation-port", "-1", "--detach")
        yield project
    finally:
        project.slotwise("stop", check=False)


@dataclass
class Clients:
    """Clients that ask all the time; `lost` has what was not their own answer."""

    url: str
    answered: list[int] = field(default_factory=lambda: [0] * 4)  # by client
    lost: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Clients:
        self.threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(4)]
        for thread in self.threads:
            thread.start()
        time.sleep(1.0)
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def _ask(self, i: int) -> None:
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
            for n in range(i, 10**6, 4):
                if self.over.is_set():
                    return
                try:
                    answer = client.post(f"{self.url}/predictions/quick", content=str(n))
                    if answer.status_code != 200 or answer.json() != {"answer": 2.0 * n + 1}:
                        self.lost.append(f"{n}: {answer.status_code} {answer.text}")
                except httpx.HTTPError as error:
                    self.lost.append(f"{n}: {error!r}")
                self.answered[i] += 1

    def go_on(self, count: int = 50) -> None:
        """Wait for so many further answers to each client: also to the one whose worker has ended, who goes alone then."""
        until, last = [before + count for before in self.answered], time.monotonic() + PATIENCE_S

        def still() -> bool:
            return any(now < then for now, then in zip(self.answered, until, strict=True))

        while still() and time.monotonic() < last:
            time.sleep(0.05)
        assert not still()


def workers(project: Project) -> list[int]:
    """Both of them; one that was ended has to come back first."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        pids = [pid for pid, line in command_lines(project.server.run_id).items() if "slotwise.worker" in line]
        if len(pids) == 2:
            return pids
        assert time.monotonic() < deadline, pids
        time.sleep(0.1)


def test_workers_that_are_killed_and_stopped_cost_nobody_anything(project: Project) -> None:
    with Clients(project.gateway.url) as clients:
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM):
            os.kill(workers(project)[0], number)
            clients.go_on()
    assert clients.lost == []
    metrics = httpx.get(f"{project.gateway.url}/metrics", trust_env=False).text
    assert 'slotwise_host_open_requests{model="quick",version="1.0"} 0.0' in metrics


def test_the_gateway_is_answered_in_the_hosts_process_and_another_takes_its_place(project: Project) -> None:
    first = project.gateway
    listening = [one.laddr.port for one in psutil.Process(project.server.pid).net_connections() if one.status == "LISTEN"]
    assert int(first.url.rpartition(":")[2]) in listening
    with Clients(first.url) as clients:
        project.slotwise("gateway", "--port", first.url.rpartition(":")[2], "--translation-port", "-1", "--replace", "--detach")
        clients.go_on()
    assert clients.lost == []
    assert project.gateway.pid != first.pid


def test_a_host_that_is_killed_takes_its_workers_along_and_comes_back_with_its_models(project: Project) -> None:
    before, pids, gateway = project.server, workers(project), project.gateway
    os.kill(before.pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while any(map(psutil.pid_exists, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    answer = httpx.post(f"{gateway.url}/predictions/quick", content="20", timeout=PATIENCE_S, trust_env=False)
    assert (answer.status_code, answer.json()) == (200, {"answer": 41.0})  # it has waited for the next host
    assert project.server.run_id != before.run_id
    assert project.gateway == gateway


def test_a_host_that_ends_answers_once_more_who_has_a_connection(project: Project) -> None:
    """Closed at once it could be just when a request comes, as between the two hosts of a swap."""
    connection = http.client.HTTPConnection(project.gateway.url.removeprefix("http://"), timeout=PATIENCE_S)
    before = project.server.run_id
    deadline = time.monotonic() + PATIENCE_S

    def closes(number: int) -> bool:
        connection.request("POST", "/predictions/quick", str(number))
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())) == (200, {"answer": 2.0 * number + 1})
        return answer.getheader("connection") == "close"

    assert not closes(20)
    os.kill(project.server.pid, signal.SIGTERM)
    time.sleep(0.5)
    while not closes(21):  # a busy machine hears of it later
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while project.run_id in (before, "") or not ready(project):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ready(project: Project) -> bool:
    """Whether the gateway says that every model has its workers; a host that is just starting may take long to answer."""
    try:
        return bool(project.gateway.status()["ready"])
    except SlotwiseError:
        return False


def test_a_link_that_is_killed_is_started_again_on_the_same_sockets(project: Project) -> None:
    first = project.gateway
    os.kill(first.pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while project.gateway.pid == first.pid:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    answer = httpx.post(f"{first.url}/predictions/quick", content="20", timeout=PATIENCE_S, trust_env=False)
    assert (answer.status_code, answer.json()) == (200, {"answer": 41.0})


@pytest.mark.slow
def test_a_swap_to_another_kind_of_server_and_back_costs_nobody_anything(project: Project) -> None:
    with Clients(project.gateway.url) as clients:
        for kind, queued in (("torchserve", 1000), ("slotwise", 1000), ("slotwise", 900)):
            before = project.server.run_id
            settings = ("--set", "initial_workers=2", "--set", f"job_queue_size={queued}")
            project.slotwise("apply", "cpu", "--server", kind, *settings, "--force", "--yes")
            assert (project.server.kind, project.server.run_id == before) == (kind, False)
            clients.go_on()
    assert clients.lost == []


def test_an_option_that_is_no_good_is_refused_by_the_command(project: Project) -> None:
    project.slotwise("gateway", "--port", "0", "--translation-port", "-1", "--replace", "--detach")
    (project.folder / "bad.pem").write_text("no certificate")
    tls = ("--tls-cert", "bad.pem", "--tls-key", "bad.pem")
    said = project.slotwise("gateway", *tls, "--port", "0", "--translation-port", "-1", "--replace", "--detach", check=False)
    assert "error: the gateway did not start: the certificate and its key cannot be used" in said
    assert httpx.get(f"{project.gateway.url}/healthz", trust_env=False).status_code == 200


def test_what_batches_cost_and_what_is_chosen_is_said_and_nobody_is_lost(project: Project) -> None:
    keys = project.folder / "keys.json"
    project.slotwise("stop", check=False)
    limits = ("--set", "linger=auto", "--set", "latency_p99_ms=200", "--set", "initial_workers=1")
    options = ("--server", "slotwise", "--port", "0", *limits, "--force", "--detach")
    project.slotwise("serve", "model_store/quick.mar", *options)
    heavy, light = (
        project.slotwise("key", "add", name, "--keys", str(keys), "--weight", weight).splitlines()[0]
        for name, weight in (("heavy", "3"), ("light", "1"))
    )
    project.slotwise(
        "gateway", "--port", "0", "--translation-port", "-1", "--detach", "--keys", str(keys), "--public", "metrics"
    )
    url, wrong = project.gateway.url, list[str]()

    def ask(key: str, start: int) -> None:
        with httpx.Client(timeout=PATIENCE_S, trust_env=False, headers={"x-api-key": key}) as client:
            for n in range(start, start + 100):
                answer = client.post(f"{url}/predictions/quick", content=str(n))
                if answer.status_code != 200 or answer.json() != {"answer": 2.0 * n + 1}:
                    wrong.append(f"{n}: {answer.status_code} {answer.text}")

    threads = [threading.Thread(target=ask, args=(key, 1000 * i)) for i, key in enumerate([heavy] * 6 + [light])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "a batch of n takes" in project.slotwise("describe", "quick")

    def in_time() -> bool:
        ask(light, 5000)
        return "within the target, 200 ms" in project.slotwise("describe", "quick")

    until(in_time, "no batch is in time")  # the last ones may be late on a busy machine, which is said, too
    assert wrong == []
    metrics = httpx.get(f"{url}/metrics", trust_env=False).text
    for name in ("slotwise_host_batches_total", "slotwise_host_batch_choices_total", "slotwise_host_batch_cost_seconds"):
        assert f'{name}{{model="quick"' in metrics
    assert 'slotwise_host_open_requests{model="quick",version="1.0"} 0.0' in metrics
