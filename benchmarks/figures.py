#!/usr/bin/env python
"""The figures of README and docs: measured into docs/figures/*.json, and written from there into the pages.

python scripts/figures.py echo      a tuned MNIST against handlers that only answer, and against the shortest one
python scripts/figures.py hosts     the same archives on TorchServe, MMS, Ray and Triton (after `make full`)
python scripts/figures.py text      translation and captions: one request a batch against the profile's batches
python scripts/figures.py captions  captions with batch sizes 1 to 64
python scripts/figures.py stress    translation as slow as a real M2M100 while more comes than it can do, through the gateway
python scripts/figures.py gateway   what it adds to a ResNet-18 request, and one minute at twice the capacity
python scripts/figures.py hedging   a stand-in that never answers one request in 50, behind the gateway
python scripts/figures.py repeat    the tests that once lost a request, again and again, with every core busy
python scripts/figures.py accuracy  EfficientNet-Lite0's labels, agreement with fp32 and speed, by engine and precision
python scripts/figures.py disasters --rounds 20    killer bodies, SIGKILLs, scales and swaps under 32 clients: who lost what
python scripts/figures.py hostile   pictures that are dear to decode beside each picture model's example
python scripts/figures.py earlier --commit COMMIT    the worker as it is against the worker of an earlier commit
python scripts/figures.py worker --commit COMMIT    processor time of a request in the worker, as it is and was
python scripts/figures.py guard     what a guard adds to a batch of 8, around a handler that does nothing
python scripts/figures.py lean --commit COMMIT    MNIST straight to the server and through the gateway, as it is and was
python scripts/figures.py front     MNIST with each setting of TorchServe's front changed alone; batch sizes by load
python scripts/figures.py records   64 records in one V2 request, over REST and gRPC, against 64 requests of one
python scripts/figures.py scale     1 to 1,000 replicas on Ray, simulated from the measured lines; the figure beside it
python scripts/figures.py nodes     a stand-in that only sleeps on one and two nodes of Ray, beside the same simulation
python scripts/figures.py jpeg      one JPEG with pillow and with simplejpeg, in turns; how far a smaller size moves labels
python scripts/figures.py starting  from `slotwise serve digits` to the first answer: before, and now with Java's cache
python scripts/figures.py bits      each model on each engine: whether mates change a bit, and how far shapes are apart
python scripts/figures.py rollouts  roll-outs of equal and of worse archives, simulated: how often each is called worse
python scripts/figures.py keep NAME FILE...    what a slotwise command measured here just now, as docs/figures/NAME.json
python scripts/figures.py render [--check]     the pages, from docs/figures
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from measuring.about import ROOT
from measuring.run import exit_with, measured

PARTS = (
    "echo",
    "hosts",
    "text",
    "captions",
    "stress",
    "gateway",
    "hedging",
    "accuracy",
    "hostile",
    "earlier",
    "repeat",
    "guard",
    "disasters",
    "lean",
    "front",
    "records",
    "scale",
    "nodes",
    "jpeg",
    "starting",
    "bits",
    "rollouts",
    "worker",
)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="part", required=True)
    for name in PARTS:
        part = commands.add_parser(name)
        part.add_argument("--rounds", type=int, default=5)
        part.add_argument("--seconds", type=float, default=6.0, help="of one measurement")
        part.add_argument("--minute", type=float, default=60.0, help="seconds at twice the capacity")
        part.add_argument("--tool", choices=("wrk", "ab"), default="wrk")
        part.add_argument("--json", type=Path, metavar="FILE")
        if name in ("earlier", "lean", "worker"):
            part.add_argument("--commit", required=name != "lean")
    keep = commands.add_parser("keep")
    keep.add_argument("name")
    keep.add_argument("files", type=Path, nargs="+", metavar="FILE", help="tune.json, or what `slotwise bench --json` printed")
    keep.add_argument("--command", default="", help="what measured it, where the file does not say")
    render = commands.add_parser("render")
    render.add_argument("--check", action="store_true", help="write nothing; 1 where a page is not what its figures say")
    return parser.parse_args()


def main() -> int:
    """Measure one part, keep what was measured, or write the pages."""
    options = arguments()
    if options.part == "render":
        from pages.markers import render

        return render(ROOT, check=options.check)
    if options.part == "keep":
        from measuring.keep import keep

        keep(options.files, ROOT / "docs" / "figures" / f"{options.name}.json", options.command)
        return 0
    from measuring import parts

    figures = measured(lambda work: getattr(parts, options.part)(options, work), options.json)
    if figures is None:
        return 1
    json.dump(figures, sys.stdout, indent=2)
    return 0


if __name__ == "__main__":
    exit_with(main)
