"""Real servers, started once a session: everything below tests/server talks to these."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from slotwise import archive
from slotwise.inference import InferenceClient
from slotwise.management import ManagementClient
from slotwise.ports import Ports
from slotwise.profiles import load_profile
from slotwise.server import Kind, ServerRecord, start, stop

HERE = Path(__file__).parent
BATCH_SIZE = 8
PATIENCE_MS = 3000  # a batch of 8 has this long to fill: nothing here depends on how fast the machine is


@dataclass(frozen=True)
class Live:
    """A running server and its two clients."""

    record: ServerRecord
    management: ManagementClient
    inference: InferenceClient

    def pids(self, model: str) -> list[int]:
        """The worker processes of a model."""
        return sorted(worker.pid for worker in self.management.describe(model).workers)


def build_handler(name: str, store: Path, work: Path, version: str = "1.0") -> Path:
    """An archive of tests/server/handlers/NAME.py."""
    folder = work / f"{name}-{version}"
    folder.mkdir(parents=True)
    shutil.copy(HERE / "handlers" / f"{name}.py", folder)
    (folder / "model.toml").write_text(f'name = "{name}"\nversion = "{version}"\nhandler = "{name}.py"\n')
    return archive.build(folder, store)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with the digits model and the one that breaks on request."""
    store = tmp_path_factory.mktemp("store")
    # archive.build("digits", store)
    build_handler("faults", store, tmp_path_factory.mktemp("models"))
    return store


@contextmanager
def started(kind: Kind, home: Path, store: Path) -> Iterator[Live]:
    """A server of that kind with nothing registered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTWISE_HOME", str(home))
        record = start(kind, kind, load_profile("cpu"), model_store=store, ports=Ports.free())
    try:
        with ManagementClient(record) as management, InferenceClient(record) as inference:
            yield Live(record, management, inference)
    finally:
        stop(record)


@pytest.fixture(scope="session", params=["torchserve", "mms"])
def live(request: pytest.FixtureRequest, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A real server of each kind; `faults` and `digits` are registered with batches of 8."""
    with started(request.param, tmp_path_factory.mktemp(request.param), store) as server:
        for model in [p.stem for p in store.glob("*.mar")]:
            server.management.register(
                f"{model}.mar",
                batch_size=BATCH_SIZE,
                max_batch_delay=PATIENCE_MS,
                initial_workers=1,
                response_timeout=60,
            )
            server.management.wait_ready(model)
        yield server
