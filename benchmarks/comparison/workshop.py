"""Make the systems of a part from their names: archives are built once, and everybody gets the same settings."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.comparison import stock
from benchmarks.comparison.parts import DEFAULT, SPECIAL, Part
from benchmarks.comparison.peers import Peer
from benchmarks.comparison.programs import PROGRAMS
from benchmarks.comparison.systems import AS_INSTALLED, QUIET, ModelServer, Raw
from slotwise.archive.build import build
from slotwise.archive.inspection import extract
from slotwise.bench.bodies import examples
from slotwise.console import say
from slotwise.files import project
from slotwise.worker.environment.cores import available_cores
from slotwise.zoo import pictures

SIZES = {"720": (720, 720), "12M": (4000, 3000)}


class Workshop:
    """Systems of one part. processes: of every server; they share the cores. work: a folder for what is made."""

    def __init__(self, part: Part, processes: int, work: Path) -> None:
        self.part, self.processes, self.work = part, processes, work
        self.threads = max(1, available_cores() // processes)
        self.store, self.places = work / "store", project.state_dir("compare")
        self.store.mkdir()
        self.places.mkdir(parents=True, exist_ok=True)
        say(f"building {part.model}")
        self.mar = build(part.model, self.store, part.weights if part.weights == "none" else None)
        self.model_dir = extract(self.mar, work / "model", trusted=True)

    def make(self, name: str) -> ModelServer | Peer | Raw:
        """One system, not yet started."""
        base, _, size = name.partition(", batch ")
        batch = int(size or self.part.batch_size)
        if base == DEFAULT:
            return ModelServer(name, self.part.model, self.store, QUIET)
        if base in SPECIAL:
            return self.special(name)
        first, _, rest = base.partition("-")
        if first in ("stock", "torchserve"):
            return self.torchserve(name, base, batch)
        if first in PROGRAMS:
            return Peer(name, first, self.settings(rest or "natural", batch), self.work, self.places)
        engine, precision = rest.rsplit("-", 1)
        if first == "raw":
            loop = {"engine": engine, "precision": precision, "threads": self.threads, "decode_threads": self.threads}
            return Raw(name, self.model_dir, {**loop, "batch_size": batch}, self.processes)
        return ModelServer(name, self.part.model, self.store, self.profile(batch) | {"engine": engine, "precision": precision})

    def settings(self, form: str, batch_size: int) -> dict[str, Any]:
        """What a peer's program reads."""
        settings = {"form": form, "kind": self.part.kind, "model_dir": str(self.model_dir.resolve()), "engine": "openvino"}
        if self.part.kind == "picture" and form in ("natural", "decoder"):
            settings |= {"network": stock.NETWORKS[self.part.model], "weights": str(self.weights.resolve())}
        numbers = {"processes": self.processes, "threads": self.threads, "batch_size": batch_size}
        return {**settings, **numbers, "precision": self.part.precision, "delay_ms": self.part.delay_ms}

    def profile(self, batch_size: int) -> dict[str, str]:
        """The same for a server that `slotwise serve` starts."""
        numbers = {"batch_size": batch_size, "max_batch_delay_ms": self.part.delay_ms, "initial_workers": self.processes}
        return {**QUIET, **{key: str(value) for key, value in numbers.items()}, "threads": str(self.threads)}

    def special(self, name: str) -> ModelServer:
        """One that its name does not describe."""
        keys = {**self.profile(self.part.batch_size), **SPECIAL[name]}
        if "profile" in SPECIAL[name]:
            keys |= {"threads": str(max(1, available_cores() // int(keys["initial_workers"])))}
        kind, profile = keys.pop("kind", "torchserve"), keys.pop("profile", "cpu")
        return ModelServer(name, self.part.model, self.store, keys, kind, profile)  # type: ignore[arg-type]

    def torchserve(self, name: str, base: str, batch_size: int) -> ModelServer:
        """Its own handler, or one as short as a peer's program."""
        keys = self.profile(batch_size)
        if base == "stock-defaults":  # registered without parameters: one request a batch, a worker a core
            keys = {**AS_INSTALLED, "batch_size": "1", "max_batch_delay_ms": "100", "initial_workers": str(available_cores())}
        if base.startswith("stock"):
            _ = self.weights  # packs stock.mar, too
            return ModelServer(name, "stock", self.store, keys)
        settings = self.settings(base.partition("-")[2], batch_size)
        keys["precision"] = settings["precision"]
        stock.pack_handler(self.store, base, settings)
        return ModelServer(name, base, self.store, keys)

    @cached_property
    def weights(self) -> Path:
        """The network's weights as PyTorch has them; stock.mar is made with them."""
        labels = json.loads((self.model_dir / "slotwise.json").read_text("utf-8"))["model"]["labels"]
        names = labels if isinstance(labels, list) else (self.model_dir / labels).read_text("utf-8").splitlines()
        needs = stock.requirements(self.places / "stock")
        return stock.build(self.store, self.part.model, names, self.part.weights, needs)

    def bodies(self) -> dict[str, Path]:
        """The body of every workload, as a file."""
        if self.part.kind == "tensor":
            body = next(body for body in examples(str(self.mar)) if body.name.endswith(".f32"))
            written = {"tensor": body.data}
        else:
            workloads = dict.fromkeys(workload for workload, _ in self.part.cells)
            written = {workload: pictures.sample_jpeg(*SIZES[workload]) for workload in workloads}
        for workload, data in written.items():
            (self.work / workload).write_bytes(data)
        return {workload: self.work / workload for workload in written}
