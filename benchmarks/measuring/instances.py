"""Instances x threads x batch: what a worker a core answers beside one with all cores, measured, and simulated from a table.

Packrat (ICML 2025) takes a batch apart into instances with fewer threads each, and publishes 1.43 to 1.83 times the answers of
one instance with all cores. The same comparison here: so many clients as the batch has places ask again when they are answered.
The table is what a batch of n takes in one instance that is alone on the machine, by its threads: `slotwise bench --offline`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring.loads import WARM_UP_S, Static, served
from benchmarks.measuring.rounds import Cell, Reading, in_turn, rows_beside
from benchmarks.measuring.servers import built, server
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench import load, offline
from slotwise.bench.bodies import RequestBody, examples
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.bench.offline import LinearTime
from slotwise.console import say
from slotwise.errors import SlotwiseError
from slotwise.tune import virtual_host
from slotwise.worker.environment.cores import available_cores

MODELS = {"efficientnet": None, "resnet18": "none"}  # with which weights; none: random ones, as speed does not need them
BATCHES = (8, 16, 32)
FAT, THIN = "fat", "thin"  # one worker with all cores, a worker a core
DELAY_MS = 5.0  # for a full batch, whose clients do not ask again in the same moment
VIRTUAL_S = 30.0


def shape(system: str, batch: int, cores: int) -> Static:
    """How many workers, with which batch each."""
    workers = cores if system == THIN else 1
    return Static(workers, batch // workers, DELAY_MS)


class Instances:
    """One model on this machine. table: ms of batches, by threads and batch size."""

    def __init__(self, info: ArchiveInfo, seconds: float, cores: int) -> None:
        self.info, self.seconds, self.cores = info, seconds, cores
        self.bodies: Sequence[RequestBody] = examples(str(info.path))
        self.table = {threads: self._lines(threads) for threads in (1, cores)}

    def _lines(self, threads: int) -> dict[int, float]:
        workers = {"threads": str(threads), "initial_workers": "1"}
        sizes = sorted({size for batch in BATCHES for size in (1, batch // self.cores, batch)})
        environ = offline.environment("cpu", workers)
        timings = offline.measure(self.info.path, self.bodies, sizes, seconds=self.seconds, environ=environ)
        say(f"{self.info.name}, {threads} threads: {', '.join(f'{one.n}: {one.batch_ms:.1f} ms' for one in timings)}")
        return {one.n: round(one.batch_ms, 3) for one in timings}

    def line(self, system: str) -> LinearTime:
        """What a batch takes in one of its workers, by the table."""
        return offline.fit(list(self.table[1 if system == THIN else self.cores].items()))

    def simulated(self, system: str, batch: int) -> float:
        """Answers a second of our own host's dispatcher in virtual time."""
        one = shape(system, batch, self.cores)
        setting = virtual_host.VirtualSetting(self.line(system), "free", one.batch_size, one.delay_ms, workers=one.workers)
        return virtual_host.serve(setting, virtual_host.VirtualLoad(VIRTUAL_S, batch)).answered / VIRTUAL_S

    def reading(self, target: Target, clients: int) -> Reading:
        """What that many clients get."""
        return Reading.of(load.measure(target, self.bodies, LoadPlan(clients, self.seconds, warm_up_s=WARM_UP_S)))


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Both shapes of each model, in turn; the one that is not asked is idle."""
    cores, rows, tables = available_cores(), list[dict[str, Any]](), dict[str, Any]()
    if cores < 2:
        raise SlotwiseError("one core: there is nothing to take apart")
    for model, weights in MODELS.items():
        one = Instances(built(model, work, weights), options.seconds, cores)
        tables[model] = one.table
        with (
            server(work, "slotwise", FAT, threads=str(cores), initial_workers="1") as fat,
            server(work, "slotwise", THIN, threads="1") as thin,
        ):
            for batch in BATCHES:
                with (
                    served(fat, one.info, shape(FAT, batch, cores)) as fat_target,
                    served(thin, one.info, shape(THIN, batch, cores)) as thin_target,
                ):
                    targets = {FAT: fat_target, THIN: thin_target}

                    def read(cell: Cell, system: str, one: Instances = one, targets: dict[str, Target] = targets) -> Reading:
                        return one.reading(targets[system], cell[1])

                    found = rows_beside(in_turn([(model, batch)], [FAT, THIN], read, options.rounds, say=say), FAT)
                rows += [{**row, "simulated": round(one.simulated(row["system"], batch), 2)} for row in found]
    return {"seconds": options.seconds, "cores": cores, "published": [1.43, 1.83], "tables": tables, "rows": rows}
