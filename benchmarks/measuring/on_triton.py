"""MNIST on the real Triton, one request a batch: so many instances, so long a delay, 1 to 8 clients.

The classic study has a graph whose batch is fixed at 1, and tuned instances and delay alone: 24, 12, 4 and 5 instances, delays
of 100 to 4,000 microseconds; 5 instances and 150 microseconds won. Here requests go through the archive's own worker.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks.measuring.rounds import Cell, Reading, Readings, in_turn, one_round, rows
from benchmarks.measuring.servers import built, server
from slotwise.bench.bodies import examples
from slotwise.console import say
from slotwise.errors import SlotwiseError
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.space import TrialSetting

CLIENTS = (1, 2, 4, 8)
INSTANCES = (24, 12, 4, 5)
DELAYS_US = (100, 150, 500, 1000, 2000, 4000)
BEFORE, TUNED = "1 instance, no delay", "5 instances, 150 us"
PAIR = {BEFORE: TrialSetting(1, 0, 1, engine="onnxruntime"), TUNED: TrialSetting(1, 0.15, 5, engine="onnxruntime")}


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Triton's default beside what the study tuned to, in turn; then every number of instances with every delay."""
    info = built("mnist", work)
    bodies = [body for body in examples(str(info.path)) if body.name.endswith(".f32")]
    with server(work, "triton") as record, LiveBench(record, info, bodies) as bench:
        bench.keep_ready(list(PAIR.values()))

        def ask(cell: Cell, system: str) -> Reading:
            return Reading.of(bench.measure(PAIR[system], cell[1], options.seconds))

        cells = [("mnist", clients) for clients in CLIENTS]
        pair = in_turn(cells, list(PAIR), ask, options.rounds, say=say, warm_ups=1)
        bench.keep_ready([])
        grid, left_out = in_grid(bench, options)
    return {"rows": rows(pair, detail=True), "grid": rows(grid, detail=True), "left_out": left_out}


def in_grid(bench: LiveBench, options: Namespace) -> tuple[Readings, dict[str, str]]:
    """Every number of instances with every delay, and why some are not there: so many processes do not start everywhere."""
    grid: Readings = {}
    left_out = {}
    for instances, delay_us in itertools.product(INSTANCES, DELAYS_US):
        try:
            point = _point(bench, options, instances, delay_us)
        except SlotwiseError as error:
            left_out[f"{instances} instances, {delay_us} us"] = error.message
            say(f"LEFT OUT: {instances} instances, {delay_us} us: {error.message}")
            continue
        for cell, systems in point.items():
            grid.setdefault(cell, {}).update(systems)
    return grid, left_out


def _point(bench: LiveBench, options: Namespace, instances: int, delay_us: int) -> Readings:
    """One setting of the grid under every number of clients, all of its rounds one after the other: it is dear to start."""
    setting = TrialSetting(1, delay_us / 1000, instances, engine="onnxruntime")

    def ask(cell: Cell, system: str) -> Reading:
        return Reading.of(bench.measure(setting, cell[1], options.seconds))

    name = f"{instances} instances, {delay_us} us"
    readings: Readings = {(str(instances), clients): {str(delay_us): []} for clients in CLIENTS}
    for turn in range(options.rounds):
        systems = {cell: [str(delay_us)] for cell in readings}
        for cell, system, reading in one_round(turn, systems, ask, lambda text: say(f"{name}: {text}")):
            readings[cell][system].append(reading)
    return readings
