"""One client with hundreds of requests under way, beside one with a single request at a time, on our own host.

Both have an address and a process of their own. Each round asks the second client's requests alone, and beside the first one,
in turn. What is to hold: its p99 beside it is at most 1.5 times what it has alone, and one full batch.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.measuring.servers import built, server
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.inspection import inspect
from slotwise.bench import load_tools
from slotwise.bench.bodies import RequestBody, examples
from slotwise.bench.http_connection import Target, run
from slotwise.bench.load import LoadResult, percentile
from slotwise.bench.load_plan import LoadPlan
from slotwise.bench.offline import LinearTime
from slotwise.client.live_model import LiveModel
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.deploy.deploy import deploy, registration
from slotwise.errors import SlotwiseError
from slotwise.profiles.profile import load_profile
from slotwise.server.record import ServerRecord
from tests.support.sleeper import sleeper

MANY, ONE_FROM = 512, "127.0.0.3"  # the many come from 127.0.0.1
TIMES = 1.5  # what it has alone, and a batch
SLEEPS = LinearTime(1.0, 14.0)  # ms: 16 in 30
WARM_UP_S = 2.0
EARLIER_S, LONGER_S = 2.0, 1.0  # that the many ask before and after


class Client:
    """A connection from an address of its own, with one request at a time."""

    def __init__(self, target: Target, body: RequestBody, address: str) -> None:
        self.where, self.address = target.address, address
        self.request = target.request(body.data, body.content_type)

    async def ask(self, seconds: float) -> list[float]:
        """Ask again and again: how many seconds each took. Raises SlotwiseError where an answer is no 200."""
        reader, writer = await asyncio.open_connection(*self.where, local_addr=(self.address, 0))
        latencies_s: list[float] = []
        until = time.monotonic() + seconds
        while (began := time.monotonic()) < until:
            writer.write(self.request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            body = await reader.readexactly(length)
            if not head.startswith(b"HTTP/1.1 200"):
                raise SlotwiseError((head + body).decode("latin-1"))
            latencies_s.append(time.monotonic() - began)
        writer.close()
        return latencies_s


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """A small model, one that takes 30 ms for a batch and no processor, and one that takes all cores for about as long."""
    infos = [built("digits", work), inspect(sleeper(work / "store", SLEEPS)), built("efficientnet", work)]
    return {"many": MANY, "seconds": options.seconds, "times": TIMES, "rows": [_row(options, work, info) for info in infos]}


def _row(options: Namespace, work: Path, info: ArchiveInfo) -> dict[str, Any]:
    with server(work, "slotwise") as record:
        with ManagementClient(record) as client:
            deploy(client, info, registration(info, load_profile("cpu", environ={}), {}))
        target, body = Target.of(record, info.name), _body(info)
        alone(target, body, WARM_UP_S)
        rounds = []
        for turn in range(options.rounds):
            found = {}
            for way in (alone, beside) if turn % 2 else (beside, alone):
                found[way.__name__] = way(target, body, options.seconds)
                if way is beside:  # while batches are full, so that what a full one costs was seen
                    live = _described(record, info)
                    found["beside"] |= {"full_batch_ms": _full_batch_ms(live)}
            rounds.append(found)
            say(f"{info.name}, round {turn + 1}: {found}")
    return {"model": info.name, "batch_size": live.batch_size, **verdict(rounds)}


def _described(record: ServerRecord, info: ArchiveInfo) -> LiveModel:
    with ManagementClient(record) as client:
        return client.describe(info.name)


def _full_batch_ms(live: LiveModel) -> float:
    cost = live.batch_cost or {}
    return round(float(cost["batch_ms"] + cost["request_ms"] * live.batch_size), 3)


def verdict(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """The medians of the rounds, and whether what is to hold does."""
    medians = {
        f"{way}_{key}": round(statistics.median(one[way][key] for one in rounds), 3)
        for way in ("alone", "beside")
        for key in ("p50_ms", "p99_ms")
    }
    batch_ms = statistics.median(one["beside"]["full_batch_ms"] for one in rounds)
    allowed_ms = TIMES * medians["alone_p99_ms"] + batch_ms
    none_lost = all(not one["beside"]["many_lost"] and one["beside"]["many_a_second"] > 0 for one in rounds)
    held = medians["beside_p99_ms"] <= allowed_ms and none_lost
    return {"full_batch_ms": batch_ms, **medians, "allowed_ms": round(allowed_ms, 3), "held": held, "rounds": rounds}


def _body(info: ArchiveInfo) -> RequestBody:
    try:
        return examples(str(info.path))[0]
    except SlotwiseError:
        return RequestBody(b"x")  # the stand-in has none


def alone(target: Target, body: RequestBody, seconds: float) -> dict[str, float]:
    """p50 and p99 of the second client."""
    latencies_s = sorted(run(Client(target, body, ONE_FROM).ask(seconds)))
    p50_ms, p99_ms = (round(percentile(latencies_s, share) * 1000, 3) for share in (50, 99))
    return {"p50_ms": p50_ms, "p99_ms": p99_ms, "requests": len(latencies_s)}


def beside(target: Target, body: RequestBody, seconds: float) -> dict[str, float]:
    """The same while the first client has MANY requests under way, of which none may be lost."""
    with ThreadPoolExecutor(1) as pool:
        many = pool.submit(_many, target, body, EARLIER_S + seconds + LONGER_S)
        time.sleep(EARLIER_S)
        found = alone(target, body, seconds)
        if many.done():
            raise SlotwiseError("the client with many requests ended too soon")
    crowd = many.result()
    return {**found, "many_a_second": round(crowd.req_s, 1), "many_lost": crowd.lost}


def _many(target: Target, body: RequestBody, seconds: float) -> LoadResult:
    """The first client; a program in C, so that it takes the server as little of the processor as may be.

    It is not measured again where requests fail: nobody would be beside it then.
    """
    return load_tools.once("wrk", target, [body], LoadPlan(MANY, seconds, warm_up_s=0))
