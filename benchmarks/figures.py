"""The figures of README and docs: measured into docs/figures/*.json, and written from there into the pages.

python -m benchmarks.figures PART --json docs/figures/NAME.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.measuring.about import ROOT
from benchmarks.measuring.run import exit_with, measured

PARTS = {
    "echo": "a tuned MNIST against handlers that only answer, and against the shortest one",
    "hosts": "the same archives on TorchServe, MMS, Ray, Triton and our own host (after `make full`)",
    "own_host": "our own host and TorchServe, each alone and behind its gateway",
    "one_word": "a deployment of TorchServe, and the same one with a word changed",
    "text": "translation and captions: one request a batch against the profile's batches",
    "captions": "captions with batch sizes 1 to 64",
    "captions_large": "captions at GIT base's size: parts by batch size, one and two processes, sorted response times",
    "translation_large": "translation at the size of M2M100 418M: time to READY, memory, 1 to 16 records",
    "mnist_triton": "MNIST on the real Triton: 24 to 4 instances, delays of 100 to 4,000 us, 1 to 8 clients",
    "study152": "the batching study on ResNet-152 itself: 1 and 8 workers, 10 to 1,000 clients",
    "stress": "translation as slow as a real M2M100 while more comes than it can do, through the gateway",
    "gpu": "a GPU: agreement with the CPU, rows kept apart, speed, memory, a served model (no Java needed)",
    "fairness": "one client with 512 requests under way beside one with a single request at a time, on our own host",
    "adversaries": "bodies that lie, poison, half of the cores: what a host that sets itself loses, and until when",
    "instances": "a worker a core beside one worker with all cores, measured and simulated from a table of batches",
    "loads": "constant loads on our own host: what it chooses, beside the best static settings for that very load",
    "day": "a day on our own host (--seconds 600): what it chooses, beside settings that stay and beside the simulator",
    "decoded": "captions and translation in closed batches and in steps: 1, 8 and 16 clients",
    "dropped": "streams alone, and beside 1,000 that are dropped and 50 that are never read",
    "by_steps": "closed batches against steps: translations of 4 to 64 tokens, 32 clients",
    "unread": "streams of our own host, LitServe, TorchServe and Mosec beside clients that stop reading theirs",
    "streams_beside": "streams of our own host, LitServe and TorchServe: pieces a second; then one poisoned request in eight",
    "gateway": "what it adds to a ResNet-18 request, and one minute at twice the capacity",
    "hedging": "a stand-in that never answers one request in 50, behind the gateway",
    "accuracy": "EfficientNet-Lite0's labels, agreement with fp32 and speed, by engine and precision",
    "disasters": "killer bodies, SIGKILLs, scales and swaps under 32 clients: who lost what (--rounds 20)",
    "hostile": "pictures that are dear to decode beside each picture model's example",
    "worker": "processor time of a request in the worker, as it is and as it was at --commit",
    "traces": "processor time of a request on our own host: without traces, and with 1% of them",
    "guard": "what a guard adds to a batch of 8, around a handler that does nothing",
    "records": "64 records in one V2 request, over REST and gRPC, against 64 requests of one",
    "scale": "1 to 1,000 replicas on Ray, simulated from the measured lines; the figure beside it",
    "nodes": "a stand-in that only sleeps on one and two nodes of Ray, beside the same simulation",
    "study": "the batching study: published, on a stand-in that sleeps, and on --model; the figure beside it",
    "starting": "from `slotwise serve digits` to the first answer: before, and now with Java's cache",
    "bits": "each model on each engine: whether mates change a bit, and how far shapes are apart",
    "rollouts": "roll-outs of equal and of worse archives, simulated: how often each is called worse",
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="part", required=True)
    for name, what in PARTS.items():
        part = commands.add_parser(name, help=what.replace("%", "%%"))
        part.add_argument("--rounds", type=int, default=5)
        part.add_argument("--seconds", type=float, default=6.0, help="of one measurement")
        part.add_argument("--minute", type=float, default=60.0, help="seconds at twice the capacity")
        part.add_argument("--tool", choices=("wrk", "ab"), default="wrk")
        part.add_argument("--json", type=Path, metavar="FILE")
        if name == "worker":
            part.add_argument("--commit", required=True)
        if name == "study":
            part.add_argument("--model", default="resnet18", help="a model's name or folder")
    keep = commands.add_parser("keep", help="run a slotwise command that measures a model; write docs/figures/NAME.json")
    keep.add_argument("name")
    keep.add_argument("--command", required=True, help="`slotwise tune MODEL ...`, for example")
    commands.add_parser("stale", help="which figures are older than the code they measure; 1 where any is")
    anew = commands.add_parser("anew", help="measure the figures that are older than their code, each by its command")
    anew.add_argument("names", nargs="*", metavar="NAME", help="these only, older or not")
    anew.add_argument("--until", default="", metavar="HH:MM", help="begin none that would end later")
    render = commands.add_parser("render", help="write the pages from docs/figures")
    render.add_argument("--check", action="store_true", help="write nothing; 1 where a page is not what its figures say")
    return parser.parse_args()


def main() -> int:
    """Measure one part, keep what was measured, or write the pages."""
    options = arguments()
    if options.part == "render":
        from benchmarks.pages.markers import render

        return render(ROOT, check=options.check)
    if options.part == "stale":
        from benchmarks.pages.stale import listed

        print(*(lines := listed(ROOT)), sep="\n")
        return 1 if len(lines) > 1 else 0
    if options.part == "anew":
        from benchmarks.measuring.anew import anew

        return 1 if anew(ROOT, options.names, options.until) else 0
    if options.part == "keep":
        from benchmarks.measuring.keep import printed_by

        target = ROOT / "docs" / "figures" / f"{options.name}.json"
        return 1 if measured(lambda work: printed_by(options.command, work), target) is None else 0
    from benchmarks.measuring import parts

    figures = measured(lambda work: getattr(parts, options.part)(options, work), options.json)
    if figures is None:
        return 1
    json.dump(figures, sys.stdout, indent=2)
    return 0


if __name__ == "__main__":
    exit_with(main)
