"""Where chaos and the soak happen: a server with a model that ends its worker on demand, and the gateway before it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from slotwise.client.management import ManagementClient
from slotwise.frontend import process as gateway_process
from slotwise.profiles.ports import Ports
from slotwise.server.lifecycle import Kind, ServerRecord
from tests.campaign.own_server import started
from tests.server.conftest import build_handler

WORKERS = 2
SETTINGS = {"batch_size": 8, "max_batch_delay": 10, "initial_workers": WORKERS, "response_timeout": 60}


@dataclass
class KillersPlace:
    """One server and its gateway. PATIENCE_S: for its workers to become READY."""

    PATIENCE_S: ClassVar[float]

    kind: Kind
    store: Path
    home: Path
    record: ServerRecord
    front: gateway_process.GatewayRecord

    def scale_to(self, workers: int) -> None:
        """So many workers, READY when this returns."""
        with ManagementClient(self.record) as client:
            client.scale("killers", workers)
            client.wait_ready("killers", workers, timeout_s=self.PATIENCE_S)

    @classmethod
    def serving(cls, kind: Kind, store: Path, name: str = "default", ports: Ports | None = None) -> ServerRecord:
        """A server with the model."""
        record = started(kind, store, name, ports)
        with ManagementClient(record) as client:
            client.register("killers.mar", **SETTINGS)
            client.wait_ready("killers", WORKERS, timeout_s=cls.PATIENCE_S)
        return record


def archive_in(work: Path) -> Path:
    """The folder with the model's archive."""
    return build_handler("killers", work / "store", work, handler="killers").parent
