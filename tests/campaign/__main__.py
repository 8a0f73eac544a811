"""Try to break Slotwise, and count: `python -m tests.campaign [PART...] [--scale 0.1] [--seed N] [--json FILE]`.

archives   mutated, truncated and hostile archives through inspect, extract, guard, build and export
fuzz       bodies that nobody should send, for every given handler, form and protocol
batches    mixes of good and bad requests in batches of 1 to 64; each good answer is compared with its answer alone
management TorchServe's management API, call by call, as installed and as `slotwise serve` starts it
register   hostile archives on a real TorchServe, by `slotwise register` and past it
overload   half to ten times what a server can do, idle and slow connections, at the gateway
chaos      workers, server and gateway killed or stopped, files gone and torn, disk, clock and network broken, while clients ask
hostile    one hostile client beside sixteen others at the gateway: each attack alone, then all at once
drop_in    the same at the five ports of `slotwise torchserve`
traces     timed traces of several requests at once at a host of our own, each answer compared with its answer alone
soak       each server behind the gateway at 80% of what it can do; workers die, change and are swapped

Each case follows from the seed, the part and its number alone. So a failure prints the command that repeats just it. A part
that was interrupted goes on where it was, when it is started again with the same seed, scale and FILE at the same commit; the
other parts of FILE stay as they are.
Exit: 0 all invariants held, 1 one broke.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measuring.about import ROOT, about
from benchmarks.measuring.run import exit_with, write
from slotwise.console import say
from tests.campaign.cases import Part, run_case, run_part
from tests.campaign.own_server import CHOSEN
from tests.campaign.tally import BROKEN, Tally

PARTS = ("archives", "fuzz", "batches", "management", "overload", "register", "chaos", "hostile", "drop_in", "traces", "soak")
STATE = ROOT / ".slotwise" / "campaign.json"
ON_ONE = ("management", "overload", "hostile")  # parts that are tried on one server, which is chosen
SAME = ("seed", "scale", "commit", "server")  # with which a part goes on


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--scale", type=float, default=1.0, help="the share of the full run's cases (default: 1)")
    parser.add_argument("--seed", type=int, default=1)
    kinds = ("torchserve", "slotwise")
    parser.add_argument("--server", choices=kinds, default="torchserve", help=f"what {', '.join(ON_ONE)} are tried on")
    parser.add_argument("--minutes", type=float, default=60.0, help="the most that a part may take (default: 60)")
    parser.add_argument("--json", type=Path, metavar="FILE", default=STATE, help="counts, and how far it got")
    parser.add_argument("--case", type=int, help="only this case of the one part, as a failure names it")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {min(unknown)}; there are {', '.join(PARTS)}")
    if options.case is not None and len(options.parts) != 1:
        parser.error("--case belongs to one part")
    options.json = options.json.resolve()
    return options


def load_part(name: str) -> Part:
    """The part of this name."""
    part: Part = import_module(f"tests.campaign.{name}").PART
    return part


def earlier_parts(file: Path) -> dict[str, Any]:
    """What earlier runs left in the file; nothing where it cannot be read."""
    try:
        return dict(json.loads(file.read_text("utf-8"))["parts"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def resumed(left: dict[str, Any] | None, part: Part, facts: dict[str, Any]) -> Tally:
    """The part's tally: the one that was left with the same seed, scale and commit; else a new one."""
    same = {key: facts[key] for key in SAME}
    if left is not None and all(left.get(key) == value for key, value in same.items()):
        return Tally(**left)
    where = {"tree": facts["tree"], "date": facts["date"], "cpu": facts["machine"]["cpu"]}
    return Tally(planned=part.planned(facts["scale"]), full=part.planned(1.0), **where, **same)


def repeat(part: str, seed: int, case: int) -> str:
    """The command that tries one case again."""
    server = f" --server {CHOSEN.kind}" if CHOSEN.kind != "torchserve" else ""
    return f"python -m tests.campaign {part}{server} --seed {seed} --case {case}"


def one_case(part: Part, options: argparse.Namespace, work: Path) -> int:
    """Try one case again, and say what it counts."""
    tally = Tally(planned=1)
    with part.start(work, options.scale) as case:
        run_case(part, case, options.seed, options.case, tally)
    print(json.dumps(tally.as_dict(), indent=2))
    return 1 if tally.broken else 0


def main() -> int:
    """Run the parts, and print what they counted."""
    options = arguments()
    CHOSEN.kind = options.server
    logging.disable(logging.ERROR)  # what is refused on purpose
    names = options.parts or list(PARTS)
    with tempfile.TemporaryDirectory(prefix="slotwise-campaign-") as folder:
        os.chdir(ROOT)
        if options.case is not None:
            return one_case(load_part(names[0]), options, Path(folder))
        facts = {**about(), "seed": options.seed, "scale": options.scale}
        result: dict[str, Any] = {**facts, "parts": earlier_parts(options.json)}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        broken = False
        for name in names:
            part, on = load_part(name), options.server if name in ON_ONE else ""
            tally = resumed(result["parts"].get(name), part, {**facts, "server": on})

            def save(name: str = name, tally: Tally = tally) -> None:
                result["parts"][name] = tally.as_dict()
                partial = options.json.with_suffix(".partial")
                write(partial, result)
                partial.replace(options.json)

            say(f"{name}: {part.what}; {tally.planned - tally.cases} of {tally.planned} cases are left")
            (work := Path(folder) / name).mkdir()
            run_part(part, options.seed, options.scale, tally, work, options.minutes * 60, save)
            _report(name, tally, options.seed)
            broken |= tally.broken
    return 1 if broken else 0


def _report(name: str, tally: Tally, seed: int) -> None:
    counts = ", ".join(f"{getattr(tally, key)} {key}" for key in ("requests", "innocents", "refused", "restarts", *BROKEN))
    print(f"{name}: {tally.cases} of {tally.planned} cases in {tally.seconds:.0f} s: {counts}")
    for failure in tally.failures:
        print(f"  {failure['kind']}: {failure['what']}\n    {repeat(name, seed, failure['case'])}")


if __name__ == "__main__":
    exit_with(main)
