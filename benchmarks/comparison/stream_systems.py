"""The streaming servers that are compared: one worker of one thread, 32 streams at once, the same handler and weights in each.

A careful author catches what can be caught without asking the model anew: a body that cannot be read, a prefill that fails
alone. What one row does to a step for all, no author's code here finds out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparison import stock
from benchmarks.comparison.peers import Peer
from benchmarks.comparison.programs import HERE
from benchmarks.comparison.systems import QUIET, ModelServer
from slotwise.archive.build import build
from slotwise.archive.inspection import extract
from slotwise.bench.http_connection import Target
from slotwise.console import say
from slotwise.files import project

SLOTS, THREADS, DELAY_MS, TIMEOUT_S = 32, 1, 2, 60
OURS = "ours"
PROFILE = {"batch_size": SLOTS, "max_batch_delay_ms": DELAY_MS, "initial_workers": 1, "threads": THREADS}
Server = ModelServer | Peer


class StreamYard:
    """Makes the servers. made: the folder of the model. work: for what is made. handler: its module and class."""

    def __init__(self, made: Path, work: Path, handler: str, engine: str = "") -> None:
        self.handler, self.engine = handler, {"engine": engine, "precision": "fp32"} if engine else {}
        self.work, self.store, self.places = work, work / "store", project.state_dir("compare")
        self.places.mkdir(parents=True, exist_ok=True)
        say(f"building {made.name}")
        self.mar = build(made, self.store)
        self.model_dir = extract(self.mar, work / "extracted", trusted=True)
        self.count = 0

    def settings(self, *, careful: bool, continuous: bool = False) -> dict[str, Any]:
        """What the programs of others read."""
        numbers = {"processes": 1, "threads": THREADS, "batch_size": SLOTS, "delay_ms": DELAY_MS, "timeout_s": TIMEOUT_S}
        kind = {"kind": "stream", "handler": self.handler, "form": "engine" if self.engine else "natural", **self.engine}
        return {**kind, **numbers, "model_dir": str(self.model_dir.resolve()), "careful": careful, "continuous": continuous}

    def ours(self) -> ModelServer:
        """Our own host with a step engine."""
        return ModelServer(self._name("ours"), self.mar.stem, self.store, self._profile(), "slotwise")

    def litserve(self, *, careful: bool) -> Peer:
        """LitServe's continuous loop."""
        return Peer(self._name("litserve"), "litserve_streams", self.settings(careful=careful), self.work, self.places)

    def mosec(self) -> Peer:
        """Mosec's server-sent events of closed batches."""
        return Peer(self._name("mosec"), "mosec_streams", self.settings(careful=False), self.work, self.places)

    def torchserve(self, *, careful: bool, continuous: bool) -> ModelServer:
        """TorchServe: intermediate answers of closed batches, or its continuousBatching."""
        settings = self.settings(careful=careful, continuous=continuous)
        name = f"torchserve-{'continuous' if continuous else 'closed'}-{'careful' if careful else 'plain'}"
        if not (self.store / f"{name}.mar").exists():
            parts = self.work / f"{name}-parts"
            parts.mkdir()
            (parts / "settings.json").write_text(json.dumps(settings), "utf-8")
            (parts / "model-config.yaml").write_text(f"continuousBatching: {json.dumps(continuous)}\n", "utf-8")
            shutil.copy(HERE / "step_model.py", parts)
            files = ["--handler", str(HERE / "torchserve_streams_app.py"), "--extra-files", "step_model.py,settings.json"]
            stock.archive(name, self.store, parts, [*files, "--config-file", "model-config.yaml"])
        return ModelServer(self._name(name), name, self.store, self._profile(), "torchserve")

    def _name(self, name: str) -> str:
        self.count += 1
        return f"{name}-{self.count}"

    def _profile(self) -> dict[str, str]:
        keys = {**PROFILE, "response_timeout_s": TIMEOUT_S, **self.engine}
        return {**QUIET, **{key: str(value) for key, value in keys.items()}}


@dataclass(frozen=True)
class StreamSystem:
    """One server. headers: how its client asks for a stream. speed: whether it is measured without poison, too."""

    make: Callable[[StreamYard], Server]
    headers: Mapping[str, str]
    speed: bool

    def target(self, server: Server) -> Target:
        """Where it is asked."""
        return Target(server.target.url, {**server.target.headers, **self.headers})


EVENTS = {"accept": "text/event-stream"}
SYSTEMS: dict[str, StreamSystem] = {
    OURS: StreamSystem(lambda yard: yard.ours(), EVENTS, True),
    "LitServe": StreamSystem(lambda yard: yard.litserve(careful=False), {}, True),
    "LitServe, careful author": StreamSystem(lambda yard: yard.litserve(careful=True), {}, False),
    "TorchServe": StreamSystem(lambda yard: yard.torchserve(careful=False, continuous=False), {}, True),
    "TorchServe, careful author": StreamSystem(lambda yard: yard.torchserve(careful=True, continuous=False), {}, False),
    "TorchServe, continuousBatching": StreamSystem(lambda yard: yard.torchserve(careful=False, continuous=True), {}, True),
    "TorchServe, continuousBatching, careful author": StreamSystem(
        lambda yard: yard.torchserve(careful=True, continuous=True), {}, False
    ),
}
