"""The classic ResNet-152 batching study again: throughput over clients by batch size, and over the delay with ten clients.

It ran on 8 workers. Side by side stand: the published numbers; a stand-in that sleeps a*n + b ms for a batch of n, which shows
what batching does by itself on any machine; and a model as measured here, on 8 workers and on as many as the machine has cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.bench.bodies import RequestBody
from slotwise.bench.report import from_zero, panels
from slotwise.console import say
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.space import TrialSetting
from slotwise.worker.environment.cores import available_cores
from tests.support.sleeper import LINE

if TYPE_CHECKING:
    from slotwise.archive.archive_info import ArchiveInfo
    from slotwise.server.record import ServerRecord

CLIENTS = (10, 50, 100, 500, 1000)
FEW_CLIENTS = (10, 100, 1000)  # of the sweep on ResNet-152 itself
SIZES = (1, 8, 16)
DELAYS = (0, 1, 10, 50, 100)
WORKERS = 8
DELAY_MS = 50  # of the first figure
NETTY_THREADS = 32  # as the study set them
QUEUE = 1000  # requests that may wait: every client's
PATIENCE_S = 600.0  # a slow model has a thousand clients waiting
PUBLISHED = {1: (190, 191, 190, 191, 190), 8: (95, 301, 338, 336, 339), 16: (48, 202, 331, 353, 352)}
PUBLISHED_BY_DELAY = (187, 99, 95, 83, 74)


@dataclass(frozen=True)
class Studied:
    """What is measured: an archive on so many workers, with these bodies."""

    name: str
    info: ArchiveInfo
    bodies: Sequence[RequestBody]
    workers: int = WORKERS


@dataclass(frozen=True)
class Curves:
    """Answers a second: by_clients[batch size][i] at clients[i], by_delay[i] at delays[i] with the fewest clients."""

    by_clients: Mapping[int, Sequence[float]]
    by_delay: Sequence[float]


def measure(record: ServerRecord, studied: Iterable[Studied], rounds: int, seconds: float) -> dict[str, Any]:
    """Every curve, each point of it the median of the rounds."""
    found = {one.name: curves(record, one, rounds, seconds) for one in studied}
    about = {"workers": WORKERS, "times": rounds, "delay_ms": DELAY_MS, "standin_ms": [LINE.a_ms, LINE.b_ms]}
    by_name = {name: {"by_clients": each.by_clients, "by_delay": each.by_delay} for name, each in found.items()}
    return {**about, "clients": CLIENTS, "delays": DELAYS, "curves": by_name}


def curves(
    record: ServerRecord,
    studied: Studied,
    rounds: int,
    seconds: float,
    clients: Sequence[int] = CLIENTS,
    delays: Sequence[int] = DELAYS,
) -> Curves:
    """Both curves of one."""
    say(studied.name)
    with LiveBench(record, studied.info, studied.bodies, timeout_s=PATIENCE_S) as bench:

        def median(size: int, delay: int, clients: int) -> float:
            setting = TrialSetting(size, delay, studied.workers, threads=max(1, available_cores() // studied.workers))
            return statistics.median(bench.measure(setting, clients, seconds).req_s for _ in range(rounds))

        by_clients = {}
        for size in SIZES:
            say(f"  batch size {size}, {min(clients)} to {max(clients)} clients")
            by_clients[size] = [median(size, DELAY_MS, count) for count in clients]
        say(f"  delays of {min(delays)} to {max(delays)} ms")
        return Curves(by_clients, [median(8, delay, min(clients)) for delay in delays])


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Two panels for each of the published numbers, the stand-in and the model. found: what `measure` gave."""
    published = {"by_clients": PUBLISHED, "by_delay": PUBLISHED_BY_DELAY}
    columns = {"published (ResNet-152, 8 workers)": published, **found["curves"]}
    figure, axes = panels(2 * len(columns), columns=2)
    for i, (name, shown) in enumerate(columns.items()):
        left, right = axes[2 * i : 2 * i + 2]
        for size, row in shown["by_clients"].items():
            left.plot(CLIENTS, row, "o-", label=f"batch size {size}")
        left.set(xlabel="clients", ylabel="answers a second", title=name, xscale="log")
        left.legend()
        right.plot(range(len(DELAYS)), shown["by_delay"], "o-")
        right.set(xlabel="max_batch_delay, ms (10 clients, batch size 8)", ylabel="answers a second")
        right.set_xticks(range(len(DELAYS)), [str(ms) for ms in DELAYS])
    from_zero(axes)
    figure.savefig(path, dpi=120)
