"""Real servers, started once a session: everything below tests/server talks to these."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.build import build
from slotwise.client.inference import InferenceClient, auth_headers
from slotwise.client.management import LiveModel, ManagementClient
from slotwise.errors import SlotwiseError
from slotwise.frontend.process import GatewayRecord
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import Kind, ServerRecord, start, stop
from tests.support.gateways import gateway_before

HERE = Path(__file__).parent
BATCH_SIZE = 8
PATIENCE_MS = 3000  # a batch of 8 has this long to fill; bursts.together sends one again that a busy machine has split
RAY_PATIENCE_S = 300.0  # for what takes Ray seconds on a quiet machine
RARELY_ON_MMS = ("test_rollout.py", "test_text.py")  # the gateway and the engines do the work, and TorchServe's are tried daily
BATCHES = {"batch_size": BATCH_SIZE, "max_batch_delay": PATIENCE_MS, "initial_workers": 1, "response_timeout": 60}


def pytest_itemcollected(item: pytest.Item) -> None:
    """What is slow is tried on MMS in the long run only, as are large models with the profile ei on others' servers."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    on_mms = any(isinstance(value, str) and value == "mms" for value in params.values())
    others_with_ei = params.get("profile") == "ei" and params.get("live") != "slotwise"
    rare = item.get_closest_marker("slow") or item.path.name in RARELY_ON_MMS
    if rare and (on_mms or others_with_ei):
        item.add_marker("long")


@dataclass(frozen=True)
class Live:
    """A running server and its clients; the hasty one does not wait long for an answer."""

    record: ServerRecord
    management: ManagementClient
    inference: InferenceClient
    hasty: InferenceClient

    def pids(self, model: str) -> list[int]:
        """The worker processes of a model."""
        return sorted(worker.pid for worker in self.management.describe(model).workers)

    def inference_headers(self) -> dict[str, str]:
        """What a plain client has to send."""
        return auth_headers(self.record)

    def front(self, *options: str) -> AbstractContextManager[GatewayRecord]:
        """A gateway before it. A request may wait for a worker that a busy machine takes minutes to start again."""
        return gateway_before(self.record.state_dir.parent, self.record.name, "--timeout-s", "240", *options)

    @contextmanager
    def registered(self, model: str, **settings: Any) -> Iterator[LiveModel]:
        """A model that is registered within; by default it answers each request at once, with one worker."""
        wanted = {"batch_size": 4, "max_batch_delay": 10, "initial_workers": 1, "response_timeout": 60, **settings}
        self.management.register(f"{model}.mar", **wanted)
        try:
            yield self.management.wait_ready(model, wanted["initial_workers"])
        finally:
            if model in {listed.name for listed in self.management.list()}:
                self.management.unregister(model)


def build_handler(
    name: str,
    store: Path,
    work: Path,
    *,
    handler: str = "faults",
    version: str = "1.0",
    cpu: Mapping[str, float] | None = None,
) -> Path:
    """An archive of tests/server/handlers/HANDLER.py under a model's name. cpu: what it wants of the profile cpu."""
    folder = work / f"{name}-{version}"
    folder.mkdir(parents=True)
    shutil.copy(HERE / "handlers" / f"{handler}.py", folder)
    wishes = "".join(f"{key} = {value}\n" for key, value in (cpu or {}).items())
    settings = f'name = "{name}"\nversion = "{version}"\nhandler = "{handler}.py"\n[profiles.cpu]\n{wishes}'
    (folder / "model.toml").write_text(settings)
    return build(folder, store)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store: digits, and a model that breaks on request under three names (MMS mixes up equal archives)."""
    store, work = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("models")
    build("digits", store)
    for name in ("faults", "quick", "other"):
        build_handler(name, store, work)
    for name in ("broken", "killers"):
        build_handler(name, store, work, handler=name)
    return store


@contextmanager
def started(kind: Kind, home: Path, store: Path, **changes: str) -> Iterator[Live]:
    """A server of that kind with nothing registered. changes: keys of the profile, as `--set` takes them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTWISE_HOME", str(home))
        record = start(kind, kind, load_profile("cpu", changes), model_store=store, ports=Ports.free(), models={})
    try:
        with (
            ManagementClient(record) as management,
            InferenceClient(record) as inference,
            InferenceClient(record, timeout_s=20) as hasty,
        ):
            yield Live(record, management, inference, hasty)
    finally:
        stop(record)


def needs_a_servers_context(live: Live) -> None:
    """Skip where a handler that is none of ours, and not guarded, does not run: without TorchServe's or MMS's context."""
    if live.record.kind == "slotwise":
        pytest.skip("it needs a server's context, or a guard")


@pytest.fixture(scope="session", params=["torchserve", "mms", "slotwise"])
def live(request: pytest.FixtureRequest, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A real server of each kind; `faults` and `digits` are registered with batches of 8."""
    full = {"linger": "exact"} if request.param == "slotwise" else {}  # as the others wait: tests need batches that are full
    with started(request.param, tmp_path_factory.mktemp(request.param), store, **full) as server:
        for model in ("faults", "digits"):
            server.management.register(f"{model}.mar", **BATCHES)
            server.management.wait_ready(model)
        yield server


@pytest.fixture(scope="session")
def front(live: Live) -> Iterator[GatewayRecord]:
    """A gateway in front of the session's server, with room for 64 who wait, and with gRPC."""
    with live.front("--max-queued", "64", "--grpc-port", "0") as record:
        yield record


def changed_archive_is_refused(live: Live, store: Path) -> None:
    """Register `quick` with a line more in its worker: the line that refuses it names the file."""
    with zipfile.ZipFile(store / "quick.mar") as source, zipfile.ZipFile(store / "changed.mar", "w") as target:
        for name in source.namelist():
            more = b"\n# one line more\n" if name == "slotwise/worker/batch.py" else b""
            target.writestr(name, source.read(name) + more)
    with pytest.raises(SlotwiseError, match=r"batch\.py is not the file that was built"):
        live.management.register("changed.mar", name="changed", initial_workers=1)
