"""A hostile client at each port of `slotwise torchserve`, beside sixteen that ask well and one who looks after the models.

At 8080 and 7070 it does all that it does at the gateway; at 8081, 8082 and 7071 what needs no prediction. Promised is what is
promised at the gateway (hostile), although all of them show the one token that there is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psutil

from slotwise.host.torchserve_grpc.torchserve_messages import INFERENCE, INFERENCE_SERVICE, MANAGEMENT, MANAGEMENT_SERVICE
from tests.campaign.cases import Case, Part
from tests.campaign.hostile import MODELS, SETTINGS, WORKERS, Strike, asked_well, attacks
from tests.campaign.hostile_attacks import ATTACKS, Aim, Attack, Seen
from tests.campaign.innocents import KINDS, Innocents, Operator
from tests.server.conftest import build_handler
from tests.support.deployments import OURS, Deployment, deployed

CONNECTIONS = (
    "64 MiB of header lines",
    "256 KiB of GETs at once",
    "connections that say nothing",
    "slow heads",
    "slow bodies",
    "request smuggling",
    "Upgrade: h2c",
)
CALLS = ("cancelled gRPC calls", "idle gRPC calls")
AT = {  # the attacks at each port
    "8080 and 7070": tuple(ATTACKS),
    "8081 and 7071": (*CONNECTIONS, *CALLS),
    "8082": CONNECTIONS,
}
STRIKES = [(name, where) for where, names in AT.items() for name in names]
LINES = ("metrics_mode=prometheus", "max_request_size=33554432", "max_response_size=33554432")
PREDICTION = INFERENCE.classes["PredictionsRequest"](model_name="killers", input={"data": b"1"}).SerializeToString()
LISTING = MANAGEMENT.classes["ListModelsRequest"](limit=10).SerializeToString()


class DropInPlace:
    """A deployment with the models that innocents ask."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder, self.store = folder, store
        self.deployment: Deployment | None = None
        self.strikes = {f"{name} at {where}": self._strike(ATTACKS[name], where) for name, where in STRIKES}
        self._open = contextlib.ExitStack()

    def open(self) -> None:
        """Start it, and wait for the workers."""
        running = deployed(OURS, self.folder, self.store, LINES)
        self.deployment = self._open.enter_context(running)
        for model in MODELS:
            self.deployment.call("POST", "/models", url=f"{model}.mar", **{key: str(value) for key, value in SETTINGS.items()})
            self.deployment.wait_ready(model, WORKERS)

    def close(self) -> None:
        """Stop it."""
        self._open.close()

    def ask_well(self, seconds: float) -> Innocents:
        """See Place."""
        one = self._deployment()
        operator = Operator(one.management, one.metrics, f"127.0.0.1:{one.ports.grpc_management}", self._shown("management"))
        return asked_well(
            seconds,
            url=one.inference,
            grpc_address=f"127.0.0.1:{one.ports.grpc_inference}",
            credentials=[self._shown("inference")] * len(KINDS),
            operator=asdict(operator),
        )

    def pid(self) -> int:
        """See Place."""
        return self._deployment().pid

    def died(self) -> bool:
        """See Place."""
        return not psutil.pid_exists(self.pid())

    def _deployment(self) -> Deployment:
        assert self.deployment is not None
        return self.deployment

    def _shown(self, kind: str) -> tuple[str, str]:
        return ("authorization", self._deployment().headers(kind)["authorization"])

    def _strike(self, attack: Attack, where: str) -> Strike:
        def aim() -> Aim:
            ports = self._deployment().ports
            if where == "8082":
                return Aim(("127.0.0.1", ports.metrics), self._shown("management"), "/metrics")
            if where == "8080 and 7070":
                address, grpc = ("127.0.0.1", ports.inference), f"127.0.0.1:{ports.grpc_inference}"
                method = f"/{INFERENCE_SERVICE}/Predictions"
                return Aim(address, self._shown("inference"), grpc=grpc, method=method, message=PREDICTION)
            address, grpc = ("127.0.0.1", ports.management), f"127.0.0.1:{ports.grpc_management}"
            method = f"/{MANAGEMENT_SERVICE}/ListModels"
            return Aim(address, self._shown("management"), "/models?url=gone.mar", grpc, method, LISTING)

        def strike(over: threading.Event, seen: Seen) -> None:
            attack(aim(), over, seen)

        return strike


@contextlib.contextmanager
def start(work: Path, scale: float) -> Iterator[Case]:
    """Give what tries one attack."""
    for model in MODELS:
        store = build_handler(model, work / "store", work, handler=model).parent
    with attacks(DropInPlace(work / "deployment", store), scale) as case:
        yield case


WHAT = "a hostile client at each port of `slotwise torchserve`, beside seventeen others, each attack alone and all at once"
PART = Part("drop_in", WHAT, len(STRIKES) + 1, start, 1200.0, scaled=False, own_memory=True)
