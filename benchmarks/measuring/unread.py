"""Streams beside clients that stop reading theirs: who else notices, at our own host, LitServe, TorchServe and Mosec?

Eight clients read streams of 64 pieces, each piece with its stream's name and number. Beside them are four that ask for long
streams of large pieces: for one round they read them, for the next they read nothing. What differs between the two is what
it costs everybody else that they do not read. A step takes 5 ms for any number of streams.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.comparison.stream_systems import EVENTS, Server, StreamYard
from benchmarks.measuring.dropped import never_reads
from benchmarks.measuring.judged_streams import KeptExchange
from benchmarks.measuring.servers import handler_folder
from slotwise.bench.http_connection import Target, run
from slotwise.console import say
from slotwise.errors import SlotwiseError

CLIENTS, OTHERS, PIECES, PATIENCE_S = 8, 4, 64, 15.0
SHORT, LONG = "64 16 {}", "1000 16000 {}"  # the long ones are more than the buffers between a server and a client hold
NOBODY, READ, UNREAD = "nobody", "four that read", "four that do not read"
WELL_S, LIMIT_S = 2.0, 20.0
KINDS = ("right", "lost", "cut short", "wrong")
SYSTEMS: dict[str, tuple[Callable[[StreamYard], Server], dict[str, str]]] = {
    "ours": (lambda yard: yard.ours(), EVENTS),
    "LitServe": (lambda yard: yard.litserve(careful=False), {}),
    "TorchServe": (lambda yard: yard.torchserve(careful=False, continuous=False), {}),
    "TorchServe, continuousBatching": (lambda yard: yard.torchserve(careful=False, continuous=True), {}),
    "Mosec": (lambda yard: yard.mosec(), {}),
}
PIECE = re.compile(rb"([a-z]\d+)-(\d+);")


@dataclass
class Seen:
    """What became of the innocents' streams: how many of each of KINDS, and the seconds that each right one took."""

    kinds: Counter[str] = field(default_factory=Counter)
    whole_s: list[float] = field(default_factory=list)


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """A row for each system and what is beside its innocents. A system that cannot be started is left out, and why."""
    yard = StreamYard(handler_folder("ticking", work), work, "ticking:TickingHandler")
    rows, left_out, settings = list[dict[str, Any]](), dict[str, str](), dict[str, Any]()
    for name, (make, headers) in SYSTEMS.items():
        say(f"starting {name}")
        server = make(yard)
        try:
            server.start()
            server.wait(_body(SHORT, "w0"), "application/json")
            target = Target(server.target.url, {**server.target.headers, **headers})
            settings[name] = server.described()
            for beside in (NOBODY, READ, UNREAD):
                row = _row(target, server.pid, beside, options)
                rows.append({"system": name, "beside": beside, **row})
                say(f"{name}, beside {beside}: {row}")
        except (SlotwiseError, RuntimeError, OSError) as error:
            left_out[name] = str(error).partition(": see ")[0]
            say(f"LEFT OUT: {name}: {error}")
        finally:
            server.stop()
    plan = {"clients": CLIENTS, "others": OTHERS, "seconds": options.seconds, "rounds": options.rounds}
    return {"plan": {**plan, "patience_s": PATIENCE_S}, "rows": rows, "left_out": left_out, "settings": settings}


def _row(target: Target, pid: int, beside: str, options: Namespace) -> dict[str, Any]:
    """So many rounds of one neighbour: the sums of what became of innocents, and the medians of the rest."""
    seen, rates, well, before = Seen(), list[float](), list[float | None](), _memory_mib(pid)
    most = before
    for _ in range(options.rounds):
        new = Seen()
        most = max(most, run(_beside(target, pid, beside, options.seconds, new)))
        seen.kinds.update(new.kinds)
        seen.whole_s += new.whole_s
        rates.append(new.kinds["right"] / options.seconds)
        well.append(_well_after(target))
    return {
        **{kind.replace(" ", "_"): seen.kinds[kind] for kind in KINDS},
        "streams_s": round(statistics.median(rates), 2),
        "whole_p50_ms": round(1000 * statistics.median(seen.whole_s), 1) if seen.whole_s else None,
        "well_after_s": None if None in well else round(statistics.median(each for each in well if each is not None), 1),
        "memory_mib": round(most - before, 1),
    }


async def _beside(target: Target, pid: int, beside: str, seconds: float, seen: Seen) -> float:
    """Innocents for so many seconds, and what is beside them; the most memory that the server had, in MiB."""
    silent = [never_reads(target, _body(LONG, f"u{i}")) for i in range(OTHERS)] if beside == UNREAD else []
    others = [asyncio.create_task(_reads_on(target, f"r{i}")) for i in range(OTHERS)] if beside == READ else []
    watch, most = asyncio.create_task(asyncio.sleep(seconds)), 0.0
    asking = [asyncio.create_task(_asks(target, f"c{i}", seconds, seen)) for i in range(CLIENTS)]
    while not watch.done():
        most = max(most, _memory_mib(pid))
        await asyncio.sleep(0.5)
    await asyncio.gather(*asking)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for one in silent:
        one.close()
    return most


async def _asks(target: Target, name: str, seconds: float, seen: Seen) -> None:
    """One innocent client: it reads each of its streams to the end, and judges it."""
    until = time.monotonic() + seconds
    exchange: KeptExchange | None = None
    while time.monotonic() < until:
        began, status, ended = time.monotonic(), 0, False
        with suppress(OSError):  # TimeoutError, too
            async with asyncio.timeout(PATIENCE_S):
                if exchange is None or not exchange.usable:
                    exchange = await _connected(target)
                exchange.marks, exchange.kept = [], []
                status, _, _ = await exchange.ask(target.request(_body(SHORT, name), "application/json"))
                ended = True
        kind = judge(status, b"".join(exchange.kept) if exchange else b"", name.encode(), ended=ended)
        seen.kinds[kind] += 1
        if kind == "right":
            seen.whole_s.append(time.monotonic() - began)
            continue
        if exchange is not None:
            exchange.close()
        exchange = None
        await asyncio.sleep(0.05)  # do not ask a server that is gone a thousand times a second
    if exchange is not None:
        exchange.close()


async def _reads_on(target: Target, name: str) -> None:
    """One long stream after the other, read as it comes."""
    while True:
        exchange = None
        with suppress(OSError):
            exchange = await _connected(target)
            await exchange.ask(target.request(_body(LONG, name), "application/json"))
        if exchange is not None:
            exchange.close()
        await asyncio.sleep(0.05)


def judge(status: int, body: bytes, name: bytes, *, ended: bool) -> str:
    """What a stream is, one of KINDS. Nothing but its own pieces in their order is right, and all of them."""
    pieces = [(whose, int(number)) for whose, number in PIECE.findall(body)]
    due = [(name, number) for number in range(PIECES)]
    if pieces != due[: len(pieces)]:
        return "wrong"
    if status == 200 and ended and pieces == due:
        return "right"
    return "cut short" if pieces else "lost"


def _well_after(target: Target) -> float | None:
    """Seconds until a time came in which innocents alone lost nothing; None: not within LIMIT_S."""
    began = time.monotonic()
    while (since := time.monotonic() - began) < LIMIT_S:
        seen = Seen()
        run(_beside(target, 0, NOBODY, WELL_S, seen))
        if set(seen.kinds) == {"right"}:
            return since
    return None


async def _connected(target: Target) -> KeptExchange:
    _, exchange = await asyncio.get_running_loop().create_connection(lambda: KeptExchange(1 << 30), *target.address)
    return exchange


def _body(text: str, name: str) -> bytes:
    return f'"{text.format(name)}"'.encode()


def _memory_mib(pid: int) -> float:
    """What the server's processes have in memory; what they share counts in each. 0 for pid 0."""
    total = 0
    with suppress(psutil.Error):
        first = psutil.Process(pid) if pid else None
        for process in [first, *first.children(recursive=True)] if first else []:
            with suppress(psutil.Error):
                total += process.memory_info().rss
    return total / 2**20
