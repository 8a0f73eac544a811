"""Slotwise beside other servers: the same number of processes, batch settings and log level for all of them.

python -m benchmarks.compare vision       ResNet-18: TorchServe's own handler, LitServe, FastAPI, Mosec, Ray, Triton, ...
python -m benchmarks.compare engines      the same in fp32, every server with Slotwise's decoder and engine
python -m benchmarks.compare engines-int8 the same of EfficientNet-Lite0 in int8, a faster model
python -m benchmarks.compare inference    the same with each server's own decoder before Slotwise's engine
python -m benchmarks.compare ablation     three servers with natural code, with our decoder, with our engine; and Slotwise
python -m benchmarks.compare tensors      MNIST as tensors, 1 to 64 clients
python -m benchmarks.compare precision    Slotwise and a loop without a server, by engine and precision
python -m benchmarks.compare lite0        EfficientNet-Lite0 with ImageNet's weights
python -m benchmarks.compare resnet152    ResNet-152 by batch size, 10 and 100 clients
python -m benchmarks.compare ants         1,000 requests of 50 clients, on the layouts `ei` and `cpu`

Every round measures every system once; the others are stopped meanwhile, because some poll when they are idle. What --json
has of the same plan is kept and not measured again, so a part can be cut off and go on later. A peer that our environment
does not have is installed into one of its own, below .slotwise/compare.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from benchmarks.comparison.kept import Clock, Round, earlier, left_out, one_round, readings
from benchmarks.comparison.loads import QUICK_WARM_UP_S, Loads
from benchmarks.comparison.parts import PARTS, QUICK, Part
from benchmarks.comparison.programs import PROGRAMS, environment
from benchmarks.comparison.results import draw, ratios
from benchmarks.comparison.stock import requirements
from benchmarks.comparison.systems import Http
from benchmarks.comparison.workshop import Workshop
from benchmarks.measuring.about import about, git, machine
from benchmarks.measuring.alone import OneAtATime
from benchmarks.measuring.rounds import WARM_UP_S, Cell, Reading, rows
from benchmarks.measuring.run import exit_with, measured, write
from benchmarks.pages.stale import CODE
from slotwise.console import out, say
from slotwise.console import table as shown_table
from slotwise.errors import SlotwiseError
from slotwise.files.disk import check_target
from slotwise.worker.environment.cores import available_cores


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=tuple(PARTS))
    parser.add_argument("--quick", action="store_true", help="two rounds of 3 s a measurement, few systems, a short warm-up")
    parser.add_argument("--prepare", action="store_true", help="install the peers, build the model, and measure nothing")
    parser.add_argument("--systems", help="these only, separated by semicolons (default: all of the part)")
    parser.add_argument("--rounds", type=int, help="default: 3, with --quick 2")
    parser.add_argument("--seconds", type=int, help="of one measurement (default: as the part says, with --quick 3)")
    parser.add_argument("--minutes", type=float, default=40, help="no round begins that would end later (default: 40)")
    parser.add_argument("--processes", type=int, default=available_cores(), help="of every server; they share the cores")
    parser.add_argument("--tool", choices=("wrk", "ab"), default="wrk" if shutil.which("wrk") else "ab", help="for tensors")
    parser.add_argument("--json", type=Path, metavar="FILE", help="is read first, and written after every round")
    parser.add_argument("--figure", type=Path, metavar="FILE", help=".svg or .png")
    return parser.parse_args()


def chosen(part: Part, options: argparse.Namespace) -> dict[Cell, list[str]]:
    """The part's cells with the systems that were asked for."""
    wanted = [name.strip() for name in options.systems.split(";")] if options.systems else part.systems
    if options.quick and not options.systems and {*QUICK} <= {*wanted}:
        wanted = [*QUICK]
    if unknown := set(wanted) - set(part.systems):
        raise SlotwiseError(f"{options.part} has no system {', '.join(sorted(unknown))}: it has {'; '.join(part.systems)}", "")
    cells = {cell: [name for name in names if name in wanted] for cell, names in part.cells.items()}
    return {cell: names for cell, names in cells.items() if names}


def started(names: list[str], workshop: Workshop, loads: Loads, stack: ExitStack) -> tuple[dict[str, Any], dict[str, str]]:
    """The systems that answer, by name, and why the others do not."""
    running, why = {}, {}
    for name in names:
        say(f"starting {name}")
        try:
            system = workshop.make(name)
            stack.callback(system.stop)
            system.start()
            if isinstance(system, Http):
                system.wait(loads.first, loads.content_type)
        except (SlotwiseError, RuntimeError, OSError, httpx.HTTPError, subprocess.SubprocessError) as error:
            why[name] = str(error).partition(": see ")[0]
            say(f"LEFT OUT: {name}: {error}")
        else:
            running[name] = system
    return running, why


def compare(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Start every system, send bad requests among good ones, and measure in rounds."""
    part, clock = PARTS[options.part], Clock(options.minutes)
    seconds = options.seconds or (3 if options.quick else part.seconds)
    cells = chosen(part, options)
    names = list(dict.fromkeys(name for by in cells.values() for name in by))
    tool = part.tool(options.tool)
    plan = {"part": options.part, "seconds": seconds, "requests": part.requests, "tool": tool}
    code = git("log", "-1", "--format=%h", "--", *CODE[options.part])  # readings of other code are none of this plan
    plan |= {"processes": options.processes, "cpu": machine()["cpu"], "systems": names, "code": code}
    kept, workshop = earlier(options.json, plan), Workshop(part, options.processes, work)
    loads = Loads(part, workshop.bodies(), seconds, tool, QUICK_WARM_UP_S if options.quick else WARM_UP_S)
    with ExitStack() as stack:
        running, why = started(names, workshop, loads, stack)
        known = {**about(), "plan": plan, "title": part.title, "left_out": {**kept.get("left_out", {}), **why}}
        known["settings"] = {**kept.get("settings", {}), **{name: system.described() for name, system in running.items()}}
        known["poison"] = loads.poisoned(running, kept.get("poison", {}))
        cells = {cell: [name for name in by if name in running] for cell, by in cells.items()}
        rounds = kept.get("readings", [])
        stopped = {name: system for name, system in running.items() if isinstance(system, Http) and system.can_be_stopped}
        # ended before the systems are, because a stopped process does not end
        turns = stack.enter_context(OneAtATime({name: system.pid for name, system in stopped.items()}))
        for name, system in running.items():
            say(f"warming up {name}")
            with turns.running(name):
                loads.warm_up(system)

        def measure(cell: Cell, name: str) -> Reading:
            with turns.running(name):
                return loads.measure(running[name], cell)

        return in_rounds(options, clock, known, rounds, cells, measure)


def prepare(options: argparse.Namespace, work: Path) -> None:
    """Do what takes a network or minutes and is kept: the part's model, and the environments of its peers."""
    workshop = Workshop(PARTS[options.part], options.processes, work)
    requirements(workshop.places / "stock")
    for name in dict.fromkeys(system.partition("-")[0] for system in PARTS[options.part].systems):
        if name in PROGRAMS and PROGRAMS[name].packages:
            say(f"installing {name}")
            environment(workshop.places / f"venv-{name}", PROGRAMS[name].packages)


def in_rounds(
    options: argparse.Namespace,
    clock: Clock,
    known: dict[str, Any],
    rounds: list[Round],
    cells: dict[Cell, list[str]],
    measure: Callable[[Cell, str], Reading],
) -> dict[str, Any]:
    """Measure rounds until there are enough or the time is over. RuntimeError where there is none."""
    count = options.rounds or (2 if options.quick else 3)
    cells = {cell: by for cell, by in cells.items() if by}
    while cells and len(rounds) < count and clock.time_left():
        rounds = [*rounds, clock.timed(partial(one_round, len(rounds), cells, measure, say))]
        if options.json:
            write(options.json, summed(known, rounds))
    if not rounds:
        raise RuntimeError("nothing was measured: --minutes, --seconds or --systems")
    return summed(known, rounds)


def summed(known: dict[str, Any], rounds: list[Round]) -> dict[str, Any]:
    """The part's JSON: what is known, medians over the rounds, ratios, and every reading."""
    table = rows(readings(rounds))
    missing = left_out(rounds, known["left_out"])
    return {**known, "left_out": missing, "rows": table, "ratios": ratios(table), "readings": rounds}


def show(result: dict[str, Any]) -> None:
    """The tables and the ratios, for people."""
    columns = ["body", "clients", "system", "a second", "p50 ms", "p99 ms", "lost"]
    keys = ("workload", "concurrency", "system", "rps", "p50_ms", "p99_ms", "lost")
    cells = [["" if row.get(key) is None else row[key] for key in keys] for row in result["rows"]]
    out().print(shown_table("medians over the rounds", columns, cells))
    for workload, by_clients in result["ratios"].items():
        for clients, counts in by_clients.items():
            text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in counts.items() if value is not None)
            if text:
                out().print(f"{workload}, {clients} clients: our fastest {text}", highlight=False)
    for system, counts in result["poison"].items():
        lost = f"{counts['innocent_lost']} of {counts['innocent']} innocent lost"
        out().print(f"poison, {system}: {lost}, the bad ones: {counts.get('statuses', '')}", highlight=False)
    for system, why in result["left_out"].items():
        out().print(f"left out: {system}: {why}", highlight=False)


def main() -> int:
    """Compare; 1 where nothing can be started."""
    options = arguments()
    for target in (options.json, options.figure):
        check_target(target)
    if options.prepare:
        with tempfile.TemporaryDirectory(prefix="slotwise-compare-") as folder:
            prepare(options, Path(folder))
        return 0
    result = measured(lambda work: compare(options, work), options.json)
    if result is None:
        return 1
    if options.figure:
        where = f"{result['machine']['cores']} cores ({result['machine']['cpu']})"
        draw(result["rows"], options.figure, f"{result['title']}, {where}, {len(result['readings'])} rounds")
    show(result)
    return 0


if __name__ == "__main__":
    exit_with(main)
