"""What a part sends: to a server through HTTP, to a loop without one as a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from benchmarks.comparison.parts import Part
from benchmarks.comparison.systems import Http, ModelServer, Raw
from benchmarks.measuring.rounds import Cell, Reading
from slotwise.bench.load_plan import LoadPlan
from slotwise.console import say
from slotwise.errors import SlotwiseError

ATTEMPTS = 2
QUICK_WARM_UP_S = 8.0
RAMP_S = 1.0  # of a measurement, not counted: in that time a slow server has answered nobody, and wrk and ab count it


class Loads:
    """The loads of one part. files: each workload's body. seconds: of a measurement; a large picture takes twice as long."""

    def __init__(self, part: Part, files: Mapping[str, Path], seconds: int, tool: str, warm_up_s: float) -> None:
        self.part, self.files, self.seconds, self.warm_up_s = part, files, seconds, warm_up_s
        self.tool = tool
        self.content_type = "image/jpeg" if part.kind == "picture" else "application/octet-stream"
        self.bodies = {workload: file.read_bytes() for workload, file in files.items()}
        self.first = next(iter(self.bodies.values()))

    def measure(self, system: Any, cell: Cell) -> Reading:
        """One measurement; nothing a second where the server gives none."""
        workload, clients = cell
        if isinstance(system, Raw):
            return system.load(self.files[workload], self.seconds)
        long = self.seconds * (2 if workload == "12M" else 1)
        ramp_s = RAMP_S if self.tool == "slotwise" and not self.part.requests else 0.0
        plan = LoadPlan(clients, None if self.part.requests else long, self.part.requests, warm_up_s=ramp_s)
        for _ in range(ATTEMPTS):
            try:
                reading: Reading = system.load(self.tool, self.bodies[workload], self.content_type, plan)
            except (SlotwiseError, httpx.HTTPError) as error:  # a connection that broke while the system was stopped
                say(f"{system.name} failed: {error}")
            else:
                return reading
        return Reading(0.0)

    def warm_up(self, system: Any) -> None:
        """The same for every server, before anything is measured; TorchServe's front, in Java, has to do everything often."""
        if isinstance(system, Http):
            system.warm_up("slotwise", self.first, self.content_type, self.warm_up_s)
        if isinstance(system, ModelServer) and system.kind == "torchserve":
            system.warm_up("slotwise", bytes(len(self.first)), self.content_type, self.warm_up_s / 3)  # no picture: no decoding

    def poisoned(self, running: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
        """What bad requests cost the others, by system; `before` is kept. All of ours are also summed up."""
        servers = {name: system for name, system in running.items() if isinstance(system, Http)}
        counts = {name: before.get(name) or system.poison(self.first, self.content_type) for name, system in servers.items()}
        ours = [each for name, each in counts.items() if name.startswith("slotwise-")]
        keys = ("innocent", "innocent_lost", "bad", "bad_refused")
        return {**counts, "slotwise": {key: sum(each[key] for each in ours) for key in keys}} if ours else counts
