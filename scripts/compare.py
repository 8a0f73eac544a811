#!/usr/bin/env python
"""How fast is a picture classified: stock TorchServe, Slotwise by engine, the raw loop without a server, and other servers.

python scripts/compare.py --quick                       stock, Slotwise and the raw loop, under four minutes
python scripts/compare.py --peers --json FILE --figure FILE.svg

python scripts/compare.py --model efficientnet --peers --seconds 3    EfficientNet-Lite0, ImageNet's weights, six minutes

One run, interleaved: every round measures every system once. 720x720 and 12-megapixel JPEGs, wrk or ab.
"""

from __future__ import annotations

import argparse
import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from comparison import stock
from comparison.results import draw, ratios
from comparison.systems import STOCK_SETTINGS, Http, ModelServer, Peer, Raw
from measuring.rounds import Cell, Reading, Readings, in_turn, rows
from measuring.run import exit_with, measured

from slotwise import project
from slotwise.archive.build import build, extract
from slotwise.console import out, say
from slotwise.console import table as shown_table
from slotwise.disk import check_target
from slotwise.worker.cores import available_cores
from slotwise.worker.engines.processor import has_bf16
from slotwise.zoo import pictures

BEST = "openvino-bf16" if has_bf16() else "openvino-int8"
ENGINES = ["torch-fp32", "onnxruntime-fp32", "openvino-fp32", *(["openvino-bf16"] if has_bf16() else []), "openvino-int8"]
CELLS: list[Cell] = [("720", 8), ("720", 32), ("12M", 8)]
SIZES = {"720": (720, 720), "12M": (4000, 3000)}
PEERS = {"litserve": ["litserve", "python-multipart"], "fastapi": ["fastapi", "uvicorn", "python-multipart"]}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"stock, Slotwise ({BEST}) and the raw loop")
    parser.add_argument(
        "--peers", action="store_true", help="LitServe and FastAPI, too (each installed into its own environment)"
    )
    parser.add_argument("--engines", help=f"of Slotwise and the raw loop, separated by commas (default: {','.join(ENGINES)})")
    parser.add_argument("--model", choices=tuple(stock.NETWORKS), default="resnet18")
    parser.add_argument("--weights", help="a checkpoint's path, imagenet or none (default: none for resnet18)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, help="of one measurement (default: 8, with --quick 4)")
    parser.add_argument("--batch-size", type=int, default=8, help="of every server that batches")
    parser.add_argument("--delay", type=int, default=10, help="max_batch_delay of both TorchServes, in ms")
    parser.add_argument("--workers", type=int, default=1, help="of Slotwise; they share the cores")
    parser.add_argument("--tool", choices=("wrk", "ab"), default="wrk" if shutil.which("wrk") else "ab")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--figure", type=Path, metavar="FILE", help=".svg or .png")
    return parser.parse_args()


def systems(options: argparse.Namespace, work: Path) -> list[Any]:
    """What is to be compared, not yet started."""
    store, engines = (
        work / "store",
        [BEST] if options.quick and not options.engines else (options.engines or ",".join(ENGINES)).split(","),
    )
    store.mkdir()
    weights = options.weights or ("none" if options.model == "resnet18" else "imagenet")
    say(f"building {options.model}")
    mar = build(options.model, store, None if weights == "imagenet" else weights)
    model_dir = extract(mar, work / "model", trusted=True)
    labels = json.loads((model_dir / "slotwise.json").read_text("utf-8"))["model"]["labels"]
    places = project.state_dir("compare")
    saved = stock.build(store, options.model, labels, weights, stock.requirements(places / "stock"))
    common = {"batch_size": str(options.batch_size), "max_batch_delay_ms": str(options.delay)}
    compared: list[Any] = [ModelServer("stock", "stock", store, {**common, **STOCK_SETTINGS, "initial_workers": "1"})]
    threads = max(1, available_cores() // options.workers)
    for engine, precision in (name.rsplit("-", 1) for name in engines):
        settings = {"engine": engine, "precision": precision}
        ours = {**common, **settings, "initial_workers": str(options.workers)}
        compared.append(ModelServer(f"slotwise-{engine}-{precision}", options.model, store, ours))
        loop = {**settings, "threads": threads, "decode_threads": threads, "batch_size": options.batch_size}
        compared.append(Raw(f"raw-{engine}-{precision}", model_dir, loop, options.workers))
    if options.peers:
        environ = {"WEIGHTS": str(saved.resolve()), "NETWORK": stock.NETWORKS[options.model]}
        environ["BATCH_SIZE"] = str(options.batch_size)
        compared += [Peer(name, packages, places, environ) for name, packages in PEERS.items()]
    return compared


def measure(running: list[Any], options: argparse.Namespace, work: Path) -> Readings:
    """Every system in every cell, in turn; a large picture is sent for twice as long."""
    seconds = options.seconds or (4 if options.quick else 8)
    bodies = {name: work / f"{name}.jpg" for name in SIZES}
    for name, (width, height) in SIZES.items():
        bodies[name].write_bytes(pictures.sample_jpeg(width, height))
    by_name = {system.name: system for system in running}

    def one(cell: Cell, name: str) -> Reading:
        system, (workload, clients) = by_name[name], cell
        long = seconds * 2 if workload == "12M" and isinstance(system, Http) else seconds
        return system.load(options.tool, bodies[workload], clients, long)

    return in_turn(CELLS, list(by_name), one, options.rounds, say=say)


def show(result: dict[str, Any]) -> None:
    """The table, the ratios and the poison test, for people."""
    columns = ["picture", "clients", "system", "a second", "p50 ms", "p99 ms"]
    keys = ("workload", "concurrency", "system", "rps", "p50_ms", "p99_ms")
    cells = [["" if row[key] is None else row[key] for key in keys] for row in result["rows"]]
    out().print(shown_table("medians over the rounds", columns, cells))
    for workload, by_clients in result["ratios"].items():
        for clients, counts in by_clients.items():
            text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in counts.items() if value is not None)
            out().print(f"{workload}, {clients} clients: our fastest {text}", highlight=False)
    for system, counts in result["poison"].items():
        out().print(f"poison, {system}: {counts['innocent_lost']} of {counts['innocent']} innocent lost", highlight=False)


def compare(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Start every system, measure all of them in turn, poison the servers; RuntimeError where one cannot be started."""
    with ExitStack() as stack:
        running = systems(options, work)
        for system in running:
            say(f"starting {system.name}")
            stack.callback(system.stop)
            system.start()
        table = rows(measure(running, options, work))
        good = (work / "720.jpg").read_bytes()
        poison = {system.name: system.poison(good) for system in running if isinstance(system, Http)}
    ours = [counts for system, counts in poison.items() if system.startswith("slotwise-")]
    poison["slotwise"] = {key: sum(counts[key] for counts in ours) for key in ours[0]}
    how = {"tool": options.tool, "batch_size": options.batch_size}
    how |= {"max_batch_delay_ms": options.delay, "workers": options.workers, "model": options.model}
    return {"machine": how, "rows": table, "ratios": ratios(table), "poison": poison}


def main() -> int:
    """Compare; 1 where a system cannot be started."""
    options = arguments()
    for target in (options.json, options.figure):
        check_target(target)
    result = measured(lambda work: compare(options, work), options.json)
    if result is None:
        return 1
    if options.figure:
        where = f"{result['machine']['cores']} cores ({result['machine']['cpu']})"
        draw(result["rows"], options.figure, f"{options.model} on {where}, {options.rounds} rounds")
    show(result)
    return 0


if __name__ == "__main__":
    exit_with(main)
