"""Repeat the classic ResNet-152 batching study: throughput over clients by batch size, and over the delay with ten clients.

It ran on 8 workers. Side by side stand: the published numbers; a stand-in handler that sleeps a*n + b ms for a batch of n,
which shows what batching does by itself on any machine; and, where one is given, a model as measured here, on 8 workers and on
as many as the machine has cores. Each point is measured three times, and its median is drawn.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.bench.bodies import RequestBody, examples, from_files
from slotwise.bench.offline import LinearTime
from slotwise.bench.report import from_zero, panels
from slotwise.console import table
from slotwise.deploy.deploy import obtain
from slotwise.files import project
from slotwise.interrupts import held, let_through
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import start, stop
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.page import STYLE, svg
from slotwise.tune.space import TrialSetting
from slotwise.tune.tuning import machine
from slotwise.worker.environment.cores import available_cores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from slotwise.archive.archive_info import ArchiveInfo
    from slotwise.server.record import ServerRecord

CLIENTS = (10, 50, 100, 500, 1000)
SIZES = (1, 8, 16)
DELAYS = (0, 1, 10, 50, 100)
WORKERS = 8
DELAY_MS = 50  # of the first figure
TIMES = 3  # each point is measured so often
QUEUE = 1000  # requests that may wait: every client's
PATIENCE_S = 600.0  # a slow model has a thousand clients waiting
PUBLISHED = {1: (190, 191, 190, 191, 190), 8: (95, 301, 338, 336, 339), 16: (48, 202, 331, 353, 352)}
PUBLISHED_BY_DELAY = (187, 99, 95, 83, 74)
STANDIN = LinearTime(20.0, 20.0)  # ms; about what the published numbers come from
STANDIN_HANDLER = '''
"""A stand-in, no model: a batch of n sleeps a*n + b milliseconds."""
import time

from slotwise.worker import BatchHandler


class Sleeper(BatchHandler):
    def load(self, model_dir, settings):
        self.line = settings.model["options"]
        return None

    def example(self):
        return None

    def decode(self, body, headers):
        return [0]

    def collate(self, items):
        return items

    def predict(self, inputs):
        time.sleep((self.line["a_ms"] * len(inputs) + self.line["b_ms"]) / 1000)
        return inputs


handle = Sleeper.entry_point()
'''


@dataclass(frozen=True)
class Curves:
    """Answers a second: by_clients[batch size][i] at clients[i], by_delay[i] at delays[i] with the fewest clients."""

    by_clients: dict[int, tuple[float, ...]]
    by_delay: tuple[float, ...]


@dataclass(frozen=True)
class Study:
    """The curves that were measured, by name, and the machine."""

    model: str
    clients: Sequence[int]
    delays: Sequence[int]
    curves: dict[str, Curves] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        curves = {name: {"by_clients": c.by_clients, "by_delay": c.by_delay} for name, c in self.curves.items()}
        about = {
            "model": self.model,
            "workers": WORKERS,
            "times": TIMES,
            "delay_ms": DELAY_MS,
            "standin_ms": [STANDIN.a_ms, STANDIN.b_ms],
        }
        return {**about, "clients": self.clients, "delays": self.delays, "curves": curves, "machine": self.machine}


def run(
    model: str | None,
    body: list[Path] | None,
    seconds: float,
    say: Callable[[str], None],
    *,
    clients: Sequence[int] = CLIENTS,
    delays: Sequence[int] = DELAYS,
) -> Study:
    """Measure on a server of the study's own, which is stopped afterwards. model: measured beside the stand-in."""
    with held(), ExitStack() as stack, let_through():
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slotwise-study-")))
        measured = [("a stand-in that sleeps", WORKERS, inspect(standin(folder)), [RequestBody(b"x")])]
        if model:
            info = obtain(model, project.model_store(), say=say)
            copy = inspect(_copied(info, folder))
            bodies = from_files(body) if body else examples(str(info.path))
            for workers in dict.fromkeys([WORKERS, available_cores()]):
                measured.append((f"{info.name}, {workers} workers", workers, copy, bodies))
        overrides = {"job_queue_size": str(QUEUE)}
        with held():
            record = start(
                f"study-{os.getpid()}",
                "torchserve",
                load_profile("cpu", overrides),
                model_store=folder,
                ports=Ports.free(),
                overrides=overrides,
            )
            stack.callback(stop, record)
        study = Study(model or "a stand-in", clients, delays, machine=machine(record))
        for name, workers, archive, sent in measured:
            say(name)
            study.curves[name] = _curves(record, archive, sent, workers, study, seconds, say)
    return study


def _curves(
    record: ServerRecord,
    info: ArchiveInfo,
    bodies: Sequence[RequestBody],
    workers: int,
    study: Study,
    seconds: float,
    say: Callable[[str], None],
) -> Curves:
    by_clients: dict[int, tuple[float, ...]] = {}
    with LiveBench(record, info, bodies, timeout_s=PATIENCE_S) as bench:

        def median(size: int, delay: int, clients: int) -> float:
            setting = TrialSetting(size, delay, workers)
            return statistics.median(bench.measure(setting, clients, seconds).req_s for _ in range(TIMES))

        for size in SIZES:
            say(f"  batch size {size}, {min(study.clients)} to {max(study.clients)} clients")
            by_clients[size] = tuple(median(size, DELAY_MS, clients) for clients in study.clients)
        say(f"  delays of {min(study.delays)} to {max(study.delays)} ms")
        fewest = min(study.clients)
        by_delay = [median(8, delay, fewest) for delay in study.delays]
    return Curves(by_clients, tuple(by_delay))


def standin(folder: Path, line: LinearTime = STANDIN) -> Path:
    """Build the stand-in's archive in `folder`: a batch of n sleeps line.a_ms * n + line.b_ms."""
    source = folder / "standin"
    source.mkdir()
    (source / "sleeper.py").write_text(STANDIN_HANDLER.lstrip(), "utf-8")
    options = f"[options]\na_ms = {line.a_ms}\nb_ms = {line.b_ms}\n"
    (source / "model.toml").write_text(f'name = "standin"\nhandler = "sleeper.py"\n{options}', "utf-8")
    return build(source, folder)


def _copied(info: ArchiveInfo, folder: Path) -> Path:
    return Path(shutil.copy(info.path, folder / info.path.name))


def published() -> Curves:
    """The numbers that the study published, at its own clients and delays."""
    return Curves({size: tuple(map(float, row)) for size, row in PUBLISHED.items()}, tuple(map(float, PUBLISHED_BY_DELAY)))


def draw(study: Study) -> Figure:
    """Two figures for each of the published numbers, the stand-in and the model."""
    columns: dict[str, tuple[Sequence[int], Sequence[int], Curves]] = {}
    columns["published (ResNet-152, 8 workers)"] = (CLIENTS, DELAYS, published())
    columns |= {name: (study.clients, study.delays, curves) for name, curves in study.curves.items()}
    figure, axes = panels(2 * len(columns), columns=2)
    for i, (name, (clients, delays, curves)) in enumerate(columns.items()):
        left, right = axes[2 * i : 2 * i + 2]
        for size, row in curves.by_clients.items():
            left.plot(clients, row, "o-", label=f"batch size {size}")
        left.set(xlabel="clients", ylabel="answers a second", title=name, xscale="log")
        left.legend()
        right.plot(range(len(delays)), curves.by_delay, "o-")
        right.set(xlabel="max_batch_delay, ms (10 clients, batch size 8)", ylabel="answers a second")
        right.set_xticks(range(len(delays)), [str(ms) for ms in delays])
    from_zero(axes)
    return figure


def write(study: Study, folder: Path) -> Path:
    """Write study.json, study.png and index.html into `folder`; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = draw(study)
    figure.savefig(folder / "study.png", dpi=120)
    (folder / "study.json").write_text(json.dumps(study.as_json(), indent=2), "utf-8")
    page = folder / "index.html"
    text = f"<h1>The batching study: {study.model}</h1><p>{(__doc__ or '').partition('.')[2].strip()}</p>"
    page.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Batching study</title><style>{STYLE}</style>'
        f"{text}<figure>{svg(figure)}</figure></html>\n",
        "utf-8",
    )
    return page


def render(study: Study, page: Path) -> Any:
    """The numbers as a table."""
    from rich.console import Group  # noqa: PLC0415  slow to import

    columns = ["", "batch", *(f"{n} clients" for n in study.clients)]
    rows = [["published", str(n), *map(str, row)] for n, row in PUBLISHED.items()] if tuple(study.clients) == CLIENTS else []
    delays = [["published", *map(str, PUBLISHED_BY_DELAY)]] if tuple(study.delays) == DELAYS else []
    for name, curves in study.curves.items():
        rows += [[name, str(n), *(f"{v:.0f}" for v in row)] for n, row in curves.by_clients.items()]
        delays += [[name, *(f"{v:.0f}" for v in curves.by_delay)]]
    return Group(
        table("answers a second", columns, rows),
        table("over the delay, 10 clients, batch size 8", ["", *(f"{d} ms" for d in study.delays)], delays),
        f"report: {page}",
    )
