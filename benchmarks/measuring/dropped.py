"""Clients that read their streams, alone and beside others that drop theirs at random points, or never read: who notices?

The model's steps take the same time for any number of streams (ticking.py), and there are slots for all: what is
measured is the host, on as many cores as there are. Those who drop run in a process of their own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import socket
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.measuring.rounds import Cell, in_turn
from benchmarks.measuring.servers import built_handler, server
from benchmarks.measuring.ticking import SLOTS
from benchmarks.measuring.timed_answers import PieceReading, rows
from slotwise.bench import stream_load
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target, run
from slotwise.bench.load_plan import LoadPlan
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.deploy.deploy import deploy
from slotwise.server.lifecycle import ServerRecord

NAME = "ticking"
ALONE, BESIDE = "alone", "beside dropped streams"
CLIENTS, DROPS, UNREAD = 8, 1000, 50
BODY = b"64 8 a"
DROPPED = (b"3 8 b", b"500 8 b", b"40 4000 b", b"no number")
NEVER_READ, RECEIVE_BYTES = b"1000000 4000 c", 4096  # small, so that they are cut off within a round
LONGEST_S = 0.3  # that somebody reads who drops
REST_S = 120.0  # after a round, until nothing of it is left
AT_REST = ("slotwise_host_open_requests", "slotwise_open_streams", "slotwise_gateway_memory_bytes")
CUT_OFF = "slotwise_cut_off_readers_total"


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Every round asks alone and beside them once. `left` is what is open when all is over; memory_mib, before and after."""
    info = built_handler(NAME, work)
    with server(work, "slotwise") as record:
        with ManagementClient(record) as client:
            deploy(client, info, {"batch_size": SLOTS, "max_batch_delay": 0, "initial_workers": 1, "response_timeout": 60})
            workers = [worker.pid for worker in client.describe(NAME).workers]
        target = Target.of(record, NAME)

        def ask(cell: Cell, system: str) -> PieceReading:
            return _round(record, target, options.seconds, DROPS if system == BESIDE else 0)

        cell = ("streams of 64 pieces", CLIENTS)
        readings = in_turn([cell], [ALONE, BESIDE], ask, 1, say=say)  # what is kept after the first ones, is kept
        before = _memory_mib([record.pid, *workers])
        readings = in_turn([cell], [ALONE, BESIDE], ask, options.rounds, say=say)
        numbers = _metrics(record)
        return {
            "rows": rows(readings, ALONE),
            "drops": DROPS,
            "unread": UNREAD,
            "cut_off": numbers.get(CUT_OFF, 0),
            "left": {name: numbers[name] for name in AT_REST},
            "memory_mib": {"before": before, "after": _memory_mib([record.pid, *workers])},
        }


def _round(record: ServerRecord, target: Target, seconds: float, drops: int) -> PieceReading:
    """Pieces a second of those who read, and how long they waited for the first and between two (p50_ms, p99_ms)."""
    others = multiprocessing.get_context("spawn").Process(
        target=dropping, args=(target.url, dict(target.headers), drops, UNREAD if drops else 0, seconds)
    )
    others.start()
    try:
        found = stream_load.measure(target, [RequestBody(BODY, "text/plain")], LoadPlan(CLIENTS, seconds, warm_up_s=0.5))
        others.join(REST_S)
    finally:
        others.kill()
        others.join()
    _wait_for_rest(record)
    between, first = (found.between_p50_ms, found.between_p99_ms), (found.first_p50_ms, found.first_p99_ms)
    return PieceReading(found.pieces_s, *between, sum(found.errors.values()), first_p50_ms=first[0], first_p99_ms=first[1])


def dropping(url: str, headers: Mapping[str, str], drops: int, unread: int, seconds: float) -> None:
    """Open so many streams within these seconds and drop each somewhere; and some at once, which are never read."""
    run(_dropping(Target(url, {**headers, "accept": "text/event-stream"}), drops, unread, seconds))


async def _dropping(target: Target, drops: int, unread: int, seconds: float) -> None:
    draw = random.Random(0)
    silent = [never_reads(target, NEVER_READ) for _ in range(unread)]
    async with asyncio.TaskGroup() as group:
        for _ in range(drops):
            group.create_task(_drop_one(target, draw, draw.uniform(0, seconds)))
    for one in silent:
        one.close()


def never_reads(target: Target, body: bytes) -> socket.socket:
    """A client that has asked."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    one.connect(target.address)
    one.sendall(target.request(body, "text/plain"))
    return one


async def _drop_one(target: Target, draw: random.Random, after_s: float) -> None:
    """Send a request, or some of it, read some of its answer, and leave in one of two ways."""
    await asyncio.sleep(after_s)
    request = target.request(draw.choice(DROPPED), "text/plain")
    reader, writer = await asyncio.open_connection(*target.address)
    try:
        writer.write(request[: draw.choice([len(request), len(request), draw.randrange(len(request))])])
        async with asyncio.timeout(draw.uniform(0, LONGEST_S)):
            while await reader.read(1 << 16):
                pass
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close() if draw.random() < 0.5 else writer.transport.abort()


def _wait_for_rest(record: ServerRecord) -> None:
    """Wait until nothing is open any more, or say so."""
    until = time.monotonic() + REST_S
    while any(_metrics(record)[name] for name in AT_REST):
        if time.monotonic() > until:
            say("something is still open")
            return
        time.sleep(0.2)


def _metrics(record: ServerRecord) -> dict[str, float]:
    """The host's numbers, without labels: there is one model."""
    lines = httpx.get(f"{record.metrics_url}/metrics", timeout=REST_S, trust_env=False).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#") and "_bucket" not in line)
    return {name.partition("{")[0]: float(value) for name, value in pairs}


def _memory_mib(pids: list[int]) -> float:
    """What these processes have in memory."""
    return round(sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2**20, 1)
