"""Our own management API in front of a host that starts nothing: TorchServe's routes, words and statuses."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from slotwise.archive.build import build
from slotwise.backends.exchange import Refused
from slotwise.backends.management.api import application
from slotwise.backends.management.bearer import Tokens
from slotwise.backends.management.models import HostedModel, HostedWorker, ModelTable, Observation, refusal
from slotwise.client.management import ManagementClient
from slotwise.errors import SlotwiseError
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.record import ServerRecord
from tests.support.records import server_record

HANDLER = "from slotwise.worker import BatchHandler\n\nclass Echo(BatchHandler):\n    pass\n\nhandle = Echo.entry_point()\n"


class RecordingHost:
    """A host whose workers are ready at once."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.failure = ""

    def register(self, model: HostedModel, *, default: bool) -> None:
        if model.batch_size == 13:
            raise SlotwiseError("13 is no batch size", "take another")
        self.calls.append(("register", model.id, model.batch_size, model.max_batch_delay_ms, default))

    def unregister(self, model: HostedModel) -> None:
        self.calls.append(("unregister", model.id))

    def scale(self, model: HostedModel) -> None:
        self.calls.append(("scale", model.id, model.min_workers, model.max_workers))

    def set_default(self, model: HostedModel, before: HostedModel) -> None:
        self.calls.append(("set_default", model.id, before.id))

    def describe(self, model: HostedModel) -> Observation:
        got = {"engine": "onnxruntime", "profile": "cpu"}
        ready = 0 if self.failure else model.min_workers
        workers = [HostedWorker(id=f"w{i}", pid=7 + i, status="READY", got=got, memory_bytes=5) for i in range(ready)]
        return Observation(tuple(workers), self.failure)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("echo")
    (folder / "echo.py").write_text(HANDLER)
    for version in ("1.0", "2.0"):
        wishes = "[profiles.cpu]\nbatch_size = 5\n"
        (folder / "model.toml").write_text(f'name = "echo"\nhandler = "echo.py"\nversion = "{version}"\n{wishes}')
        build(folder, folder / "store")
    return folder / "store"


@pytest.fixture
def host() -> RecordingHost:
    return RecordingHost()


@pytest.fixture
def server(host: RecordingHost, store: Path, tmp_path: Path) -> Iterator[ServerRecord]:
    """A record of the API, which listens on a free port."""
    tokens = Tokens(tmp_path)
    profile = load_profile("cpu", environ={}, cores=0)
    app = application(ModelTable(host, store, profile, {}), tokens)
    loop, started, ports = asyncio.new_event_loop(), threading.Event(), Ports.free()

    async def listen() -> None:
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", ports.management).start()

    def run() -> None:
        loop.run_until_complete(listen())
        loop.call_soon(started.set)  # not before: a stop that comes earlier would be forgotten
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(30)
    yield server_record(tmp_path, "ray", name="x", ports=ports, model_store=store)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


@pytest.fixture
def client(server: ServerRecord) -> Iterator[ManagementClient]:
    with ManagementClient(server) as client:
        yield client


def test_on_ray_replicas_are_the_workers_of_a_plain_registration(host: RecordingHost, store: Path) -> None:
    profile = load_profile("cpu", {"num_replicas": "3"}, {}, cores=0)
    workers = [ModelTable(host, store, profile, {}, kind).register("echo.mar").min_workers for kind in ("ray", "triton")]
    assert workers == [3, 1]


def test_the_models_are_noted_at_every_change(host: RecordingHost, store: Path) -> None:
    noted = list[list[tuple[str, int]]]()
    models = ModelTable(host, store, load_profile("cpu", {}, {}, cores=0), {})
    models.note = lambda now: noted.append([(one.version, one.min_workers) for one in now])
    first = models.register("echo.mar")
    models._models["echo"]["2.0"] = replace(first, version="2.0")
    models.set_default("echo", "2.0")
    models.scale("echo", "2.0", 3, 3)
    models.unregister("echo", "1.0")
    models.unregister("echo", None)
    both = [("2.0", 1), ("1.0", 1)]
    assert noted == [[("1.0", 1)], both, [("2.0", 3), ("1.0", 1)], [("2.0", 3)], []]


def test_no_two_models_share_an_id(host: RecordingHost, store: Path) -> None:
    model = ModelTable(host, store, load_profile("cpu", {}, {}, cores=0), {}).register("echo.mar")
    assert replace(model, name="a", version="1_2").id != replace(model, name="a_1", version="2").id


def test_a_model_is_registered_described_scaled_and_unregistered(client: ManagementClient, host: RecordingHost) -> None:
    client.register("echo.mar", batch_size=4, max_batch_delay=0.15, initial_workers=2, response_timeout=9)
    live = client.wait_ready("echo", workers=2)
    assert (live.name, live.version, live.batch_size, live.max_batch_delay) == ("echo", "1.0", 4, 0.15)
    assert (live.engine, live.profile, live.workers[0].memory_bytes, live.workers[1].pid) == ("onnxruntime", "cpu", 5, 8)
    assert [(model.name, model.archive) for model in client.list()] == [("echo", "echo.mar")]
    client.scale("echo", 3)
    assert client.wait_ready("echo", workers=3).min_workers == 3
    client.unregister("echo")
    assert client.list() == ()
    assert host.calls == [
        ("register", "echo@1.0", 4, 0.15, True),
        ("scale", "echo@1.0", 3, 3),
        ("unregister", "echo@1.0"),
    ]


def test_what_a_registration_leaves_out_comes_from_the_profile_and_the_model(
    client: ManagementClient, host: RecordingHost
) -> None:
    client.register("echo.mar")
    delay_ms = load_profile("cpu", environ={}, cores=0).max_batch_delay_ms
    assert host.calls == [("register", "echo@1.0", 5, delay_ms, True)]


def test_two_versions_and_which_of_them_is_the_default(client: ManagementClient, host: RecordingHost) -> None:
    client.register("echo.mar")
    client.register("echo-2.0.mar")
    assert client.describe("echo").version == "1.0"
    assert [live.version for live in client.describe_all("echo")] == ["1.0", "2.0"]
    with pytest.raises(SlotwiseError, match=r"echo 1.0 is the default of 2 versions"):
        client.unregister("echo")
    client.set_default("echo", "2.0")
    assert client.describe("echo").version == "2.0"
    assert client.describe("echo", "1.0").version == "1.0"
    client.unregister("echo", "1.0")
    assert [live.version for live in client.describe_all("echo")] == ["2.0"]
    assert host.calls[2:] == [("set_default", "echo@2.0", "echo@1.0"), ("unregister", "echo@1.0")]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda client: client.describe("nobody"), r"Model not found: nobody \(HTTP 404\)"),
        (lambda client: client.describe("echo", "9"), r"Model version: 9 does not exist for model: echo \(HTTP 404\)"),
        (lambda client: client.register("echo.mar"), r"already registered for model echo \(HTTP 409\)"),
        (lambda client: client.register("gone.mar"), r"Model not found at: gone.mar \(HTTP 404\)"),
        (lambda client: client.register("../echo.mar"), r"Relative path is not allowed in url: ../echo.mar"),
        (
            lambda client: client.register("echo.mar", name="../x"),
            r"'../x' cannot be the name or version of a model \(HTTP 400\)",
        ),
        (lambda client: client.register("echo-2.0.mar", batch_size=13), r"13 is no batch size \(HTTP 400\)"),
        (lambda client: client.register("echo-2.0.mar", max_batch_delay=60_001), r"not between 0 and 60000 ms"),
    ],
)
def test_a_refusal_is_torchserves(client: ManagementClient, call: Callable[[ManagementClient], object], message: str) -> None:
    client.register("echo.mar")
    with pytest.raises(SlotwiseError, match=message):
        call(client)


def test_a_failed_model_is_reported_at_once(client: ManagementClient, host: RecordingHost) -> None:
    host.failure = "ValueError: these weights are of another network"
    client.register("echo.mar")
    with pytest.raises(SlotwiseError, match="echo does not become ready: ValueError: these weights"):
        client.wait_ready("echo", timeout_s=60)


def test_ping_needs_no_token_and_everything_else_does(server: ServerRecord, client: ManagementClient) -> None:
    url = server.management_url
    assert httpx.get(f"{url}/ping").json() == {"status": "Healthy"}
    for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": "Bearer é"}):
        refused = httpx.get(f"{url}/models", headers={name: value.encode() for name, value in headers.items()})
        assert (refused.status_code, refused.json()["type"]) == (400, "InvalidKeyException")
    with ManagementClient(replace(server, state_dir=server.state_dir / "elsewhere")) as other, pytest.raises(SlotwiseError):
        other.list()


def test_the_token_is_readable_by_its_owner_alone(server: ServerRecord) -> None:
    assert (server.state_dir / "key_file.json").stat().st_mode & 0o077 == 0


def test_a_new_token_voids_the_old_one_only_once_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(tmp_path)
    old = f"Bearer {tokens.now['inference']}".encode()
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", no_space)
        with pytest.raises(OSError, match="No space"):
            tokens.renew("inference")
    assert tokens.opens("inference", old)
    assert [file.name for file in tmp_path.iterdir()] == ["key_file.json"]
    tokens.renew("inference")
    assert not tokens.opens("inference", old)
    written = json.loads((tmp_path / "key_file.json").read_text())
    assert {kind: key["key"] for kind, key in written.items()} == tokens.now


def test_renewals_at_the_same_time_each_end_an_old_token_and_the_file_has_the_new_ones(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path, 3600.0)
    with ThreadPoolExecutor(2) as both:
        for _ in range(40):
            before = dict(tokens.now)
            list(both.map(tokens.renew, ("management", "inference")))
            written = json.loads(tokens.file.read_text("utf-8"))
            for kind in ("management", "inference"):
                assert not tokens.opens(kind, f"Bearer {before[kind]}".encode())
                assert tokens.opens(kind, f"Bearer {written[kind]['key']}".encode())


def test_a_server_leaves_another_ones_tokens_alone(tmp_path: Path) -> None:
    running = Tokens(tmp_path)
    kept = (tmp_path / "key_file.json").read_text()
    second = Tokens(tmp_path, at_once=False)  # it cannot bind
    second.remove()
    assert (tmp_path / "key_file.json").read_text() == kept
    running.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_went_meanwhile_is_not_found() -> None:
    error = refusal(Refused(404, "there is no such model"))
    assert (error.status, error.type_) == (404, "ModelNotFoundException")


def no_space(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_where_tokens_stand_in_other_processes_none_is_made_anew(server: ServerRecord) -> None:
    keys = json.loads((server.state_dir / "key_file.json").read_text())
    for kind in ("inference", "management", "x"):
        answer = httpx.get(
            f"{server.management_url}/token?type={kind}", headers={"Authorization": f"Bearer {keys['API']['key']}"}
        )
        assert (answer.status_code, answer.json()["type"]) == (400, "InvalidKeyException")
    assert json.loads((server.state_dir / "key_file.json").read_text()) == keys


def test_an_unknown_route_is_one_object(server: ServerRecord, client: ManagementClient) -> None:
    token = json.loads((server.state_dir / "key_file.json").read_text())["management"]["key"]
    answer = httpx.post(f"{server.management_url}/nothing", headers={"Authorization": f"Bearer {token}"})
    assert (answer.status_code, answer.json()["code"]) == (404, 404)


def test_a_synchronous_call_answers_when_the_workers_are_there(server: ServerRecord) -> None:
    token = json.loads((server.state_dir / "key_file.json").read_text())["management"]["key"]
    headers = {"Authorization": f"Bearer {token}"}
    query = {"url": "echo.mar", "initial_workers": "1", "synchronous": "true"}
    done = httpx.post(f"{server.management_url}/models", params=query, headers=headers)
    assert (done.status_code, done.json()["status"]) == (
        200,
        'Model "echo" Version: 1.0 registered with 1 initial workers',
    )
    bad = httpx.put(f"{server.management_url}/models/echo", params={"min_worker": "many"}, headers=headers)
    assert (bad.status_code, bad.json()["type"]) == (400, "BadRequestException")
    fewer = httpx.put(f"{server.management_url}/models/echo", params={"min_worker": 3, "max_worker": 1}, headers=headers)
    assert (fewer.status_code, fewer.json()["code"]) == (400, 400)


@pytest.mark.parametrize("kind", ["torchserve", "mms"])
def test_a_fraction_of_a_millisecond_is_refused_where_there_is_none(server: ServerRecord, kind: str) -> None:
    with (
        ManagementClient(replace(server, kind=kind)) as client,  # type: ignore[arg-type]
        pytest.raises(SlotwiseError, match=r"counts max_batch_delay_ms in whole milliseconds, not 0.15"),
    ):
        client.register("echo.mar", max_batch_delay=0.15)


@pytest.mark.parametrize(
    ("before", "after", "opens"),
    [
        *(("Bearer ", "", True), ("Bearer  ", " ", True), (" Bearer\t", "", True)),
        *(("bearer ", "", False), ("Token ", "", False), ("", "", False), ("Bearer ", " x", False), ("Bearer ", "x", False)),
    ],
)
def test_blanks_around_a_token_are_none_of_it(tmp_path: Path, before: str, after: str, opens: bool) -> None:
    tokens = Tokens(tmp_path)
    for kind, key in tokens.now.items():
        assert tokens.opens(kind, f"{before}{key}{after}".encode()) == opens
    assert not tokens.opens("inference", b"Bearer \xff")
