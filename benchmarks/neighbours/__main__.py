"""What becomes of innocent requests at each model server while a neighbour misbehaves.

python -m benchmarks.neighbours [--quick] [--only SYSTEM ...] [--json FILE] [--figure FILE]
python -m benchmarks.neighbours --quick        six servers, in ten minutes where their environments are made

The same model in every server, the same number of processes and batch settings, each server with what its own documentation
offers against such neighbours. Sixteen clients ask well, every answer is compared with the answer alone; beside them one
neighbour at a time. A server that is not well again afterwards is started again for the next one. Only loopback is used;
HAProxy's page and numbers listen on every address while its row is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx

from benchmarks.comparison import misbehaving
from benchmarks.measuring.about import about
from benchmarks.measuring.run import exit_with, measured, write
from benchmarks.neighbours.innocents import CLIENTS, Innocents, beside, body_of, figures, quiet, values_of
from benchmarks.neighbours.neighbours import CUT, GOOD, HUGE, HUGE_BYTES, LOUD, NEIGHBOURS, QUANTISED, Aim, Neighbour
from benchmarks.neighbours.systems import LEFT_OUT, QUICK, SYSTEMS, Server, Yard, prepare
from slotwise.bench.http_connection import Target
from slotwise.console import out, say
from slotwise.console import table as shown_table
from slotwise.errors import SlotwiseError
from slotwise.files.disk import check_target

CONTENT_TYPE = "application/json"
WARM_S = 2.0
Row = dict[str, Any]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 s a neighbour, up to 10 s until it is well, six servers")
    parser.add_argument("--only", nargs="+", choices=tuple(SYSTEMS), metavar="SYSTEM", help="; ".join(SYSTEMS))
    parser.add_argument("--neighbours", nargs="+", choices=tuple(NEIGHBOURS), metavar="NEIGHBOUR", help="; ".join(NEIGHBOURS))
    parser.add_argument("--seconds", type=float, help="of each neighbour (default: 4, with --quick 2)")
    parser.add_argument("--limit", type=float, help="seconds to wait until a server is well (default: 20, with --quick 10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="systems that it has and that are not asked for stay in it")
    parser.add_argument("--figure", type=Path, metavar="FILE", help=".svg or .png")
    return parser.parse_args()


class Tried:
    """One system and the neighbours that are tried at it."""

    def __init__(self, name: str, yard: Yard, seconds: float, limit_s: float) -> None:
        self.name, self.yard, self.seconds, self.limit_s = name, yard, seconds, limit_s
        self.system: Server | None = None
        self.network = ""
        self.quiet_p99_s = 0.0
        self.quiet: dict[str, Row] = {}
        self.settings: dict[str, Any] = {}
        self.starts = 0

    def __enter__(self) -> Tried:
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server, if one runs."""
        if self.system is not None:
            self.system.stop()
        self.system = None

    def ready(self, network: str) -> Server:
        """The server with this network, its quiet time measured; the one that runs where there is one."""
        if self.system is not None and self.network == network:
            return self.system
        self.stop()
        say(f"starting {self.name}")
        self.system, self.network = SYSTEMS[self.name].make(self.yard, network), network
        self.starts += 1
        self.system.start()
        self.system.wait(body_of(values_of(1)), CONTENT_TYPE)
        self.settings = self.system.described()
        asyncio.run(quiet(self.innocents(), WARM_S))
        if network not in self.quiet:
            innocents = self.innocents()
            asyncio.run(quiet(innocents, max(2.0, self.seconds / 2)))
            self.quiet[network] = figures(innocents.outcomes)
            say(f"{self.name}, quiet: {self.quiet[network]}")
            if self.quiet[network]["wrong"]:
                raise RuntimeError(f"{self.name} answers wrongly in a quiet time: {self.quiet[network]['texts']}")
        self.quiet_p99_s = self.quiet[network]["p99_ms"] / 1000
        return self.system

    def request(self, body: bytes) -> bytes:
        """The whole request that a body makes at this server."""
        assert self.system is not None
        sent, target = self.system.wrap(body, CONTENT_TYPE), self.system.target
        headers = {**target.headers, **self.system.headers(body)}
        return Target(target.url, headers, target.v2).request(sent.data, sent.content_type)

    def innocents(self) -> Innocents:
        """Clients of this server."""
        assert self.system is not None
        return Innocents(self.system.target, self.request, getattr(misbehaving, self.network))

    def aim(self, name: str) -> Aim:
        """What a neighbour of that name needs to know."""
        assert self.system is not None
        good, target = values_of(2), self.system.target
        bodies = {GOOD: body_of(good), CUT: body_of(good)[:-9], LOUD: body_of([999_999] * misbehaving.WIDTH)}
        bodies |= {word: body_of(good, word) for word in (misbehaving.AT_DECODE, *misbehaving.CODES)}
        if name == HUGE:
            bodies[HUGE] = b'{"values": [1' + b",1" * (HUGE_BYTES // 2) + b"]}"
        path = target.url.partition("://")[2].partition("/")[2]
        return Aim(target.address, f"/{path}", {each: self.request(body) for each, body in bodies.items()})

    def beside(self, name: str) -> Row:
        """The innocents beside one neighbour."""
        self.ready("quantised" if name in QUANTISED else "plain")
        innocents, neighbour = self.innocents(), Neighbour(name, self.aim(name))
        neighbour.start()
        stopped_s = asyncio.run(beside(innocents, self.seconds, neighbour.stop, self.limit_s, self.quiet_p99_s))
        row = figures(innocents.outcomes, self.quiet_p99_s, stopped_s)
        row |= {"quiet_p99_ms": round(1000 * self.quiet_p99_s, 1), "neighbour": neighbour.seen}
        if row["well_s"] is None:  # the next neighbour meets a server that is well
            self.stop()
        say(f"{self.name}, {name}: {row}")
        return row


def tried(name: str, neighbours: list[str], yard: Yard, known: Row, seconds: float, limit_s: float) -> Row:
    """All neighbours at one system."""
    rows: dict[str, Row] = {}
    load = os.getloadavg()[0]
    with Tried(name, yard, seconds, limit_s) as place:
        for neighbour in sorted(neighbours, key=lambda each: each in QUANTISED):
            why = SYSTEMS[name].lacks.get(neighbour)
            try:
                rows[neighbour] = {"why": why} if why else place.beside(neighbour)
            except (SlotwiseError, RuntimeError, OSError, httpx.HTTPError, subprocess.SubprocessError) as error:
                if not rows:
                    raise
                rows[neighbour] = {"why": f"it did not start again: {error}"}
                place.stop()
    system = SYSTEMS[name]
    part = {**{key: known[key] for key in ("commit", "tree", "date")}, "ours": system.ours, "remedies": system.remedies}
    part |= {"settings": place.settings}
    return {**part, "load": [load, os.getloadavg()[0]], "quiet": place.quiet, "starts": place.starts, "rows": rows}


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Every system in turn. What the file has of others stays."""
    from benchmarks.comparison.kept import earlier

    seconds, limit_s = options.seconds or (2 if options.quick else 4), options.limit or (10 if options.quick else 20)
    plan = {"seconds": seconds, "limit_s": limit_s, "clients": CLIENTS}
    kept = earlier(options.json, plan)
    names = options.only or [*(QUICK if options.quick else SYSTEMS)]
    parts, left_out = dict(kept.get("parts", {})), {**kept.get("left_out", {}), **LEFT_OUT}
    known, yard = about(command(options)), Yard(work)  # before the file is written, which may be one of the repository
    prepare(names, yard)
    for name in names:
        try:
            part = tried(name, options.neighbours or [*NEIGHBOURS], yard, known, seconds, limit_s)
        except (SlotwiseError, RuntimeError, OSError, httpx.HTTPError, subprocess.SubprocessError) as error:
            left_out[name] = str(error).partition(": see ")[0]
            say(f"LEFT OUT: {name}: {error}")
            continue
        if options.neighbours and name in parts:
            part = {**part, "rows": parts[name]["rows"] | part["rows"]}
        parts[name] = part
        left_out.pop(name, None)
        ordered = {each: parts[each] for each in SYSTEMS if each in parts}
        result = {**known, "plan": plan, "neighbours": [*NEIGHBOURS], "parts": ordered, "left_out": left_out}
        if options.json:
            write(options.json, result)
    if not parts:
        raise RuntimeError("no server could be started")
    return result


def command(options: argparse.Namespace) -> str:
    """What measures all of the file anew: not only what was asked for now."""
    quick = " --quick" if options.quick else ""
    target = f" --json {options.json}" if options.json else ""
    return f"python -m benchmarks.neighbours{quick}{target}"


def show(result: dict[str, Any]) -> None:
    """What each cell says, for people."""
    from benchmarks.pages.neighbours import cell

    names = [*result["parts"]]
    cells = [[each, *(cell(result["parts"][name]["rows"].get(each)) for name in names)] for each in NEIGHBOURS]
    out().print(shown_table("innocents beside one neighbour", ["neighbour", *names], cells))


def main() -> int:
    """Measure; 1 where nothing can be started, or one of ours lost an innocent or answered one wrongly."""
    options = arguments()
    for target in (options.json, options.figure):
        check_target(target)
    result = measured(lambda work: measure(options, work), options.json)
    if result is None:
        return 1
    if options.figure:
        from benchmarks.pages.neighbours import draw

        draw(result, options.figure)
    show(result)
    rows = [row for part in result["parts"].values() if part["ours"] for row in part["rows"].values()]
    return int(any(row.get("lost") or row.get("wrong") for row in rows))


if __name__ == "__main__":
    exit_with(main)
