"""Answers over HTTP whose first pieces are timed: whole ones, which come as one piece, and streams of events."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.measuring.rounds import Reading, Readings, ratio, rows_beside
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target, run
from slotwise.bench.load import percentile
from slotwise.console import say
from slotwise.errors import SlotwiseError

SYSTEMS = {"closed": "application/json", "steps": "text/event-stream"}  # decodings, and what their clients accept


@dataclass(frozen=True)
class PieceReading(Reading):
    """A round whose first pieces were timed, too."""

    first_p50_ms: float = 0.0
    first_p99_ms: float = 0.0


class Timed(NamedTuple):
    """One answer: seconds to its first piece and to its end, and its text."""

    first_s: float
    whole_s: float
    text: str


Ask = Callable[[], Awaitable[Timed]]  # raises SlotwiseError where the answer is not right


def rows(readings: Readings, other: str = "closed") -> list[dict[str, Any]]:
    """The rows with their ratios to the system `other`, first pieces among them."""
    table = rows_beside(readings, other)
    for row in table:
        found = readings[row["workload"], row["concurrency"]]
        for key in ("first_p50_ms", "first_p99_ms"):
            values, others = ([getattr(reading, key) for reading in found[name]] for name in (row["system"], other))
            beside = ratio(values, others)
            row[key] = round(statistics.median(values), 1)
            row[f"{key.removesuffix('_ms')}_to_{other}"] = beside._asdict() if beside else None
    return table


def loaded(ask: Ask, clients: int, seconds: float) -> PieceReading:
    """So many clients ask one answer after the other for so many seconds."""
    timed: list[Timed] = []
    failed = 0

    async def client(until: float) -> None:
        nonlocal failed
        while time.perf_counter() < until:
            try:
                timed.append(await ask())
            except (OSError, ValueError, SlotwiseError) as error:
                say(f"lost: {error}")
                failed += 1

    async def all_clients() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(client(began + seconds) for _ in range(clients)))
        return time.perf_counter() - began

    took = run(all_clients())
    first, whole = sorted(1000 * one.first_s for one in timed), sorted(1000 * one.whole_s for one in timed)
    numbers = [percentile(ordered, p) for ordered in (whole, first) for p in (50, 99)]
    return PieceReading(len(timed) / took, numbers[0], numbers[1], failed, first_p50_ms=numbers[2], first_p99_ms=numbers[3])


async def asked(target: Target, accept: str, body: RequestBody) -> Timed:
    """Ask for one answer. Raises SlotwiseError where there is none, or it breaks off."""
    began, first, answer = time.perf_counter(), 0.0, b""
    asking = Target(target.url, {**target.headers, "accept": accept, "connection": "close"})
    reader, writer = await asyncio.open_connection(*asking.address)
    try:
        writer.write(asking.request(body.data, body.content_type))
        head = await reader.readuntil(b"\r\n\r\n")
        while part := await reader.read(1 << 16):
            first = first or time.perf_counter() - began
            answer += part
    finally:
        writer.close()
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise SlotwiseError(f"{head[:60]!r}: {answer[:200]!r}")
    return Timed(first, time.perf_counter() - began, text_of(answer, whole=accept == SYSTEMS["closed"]))


def text_of(body: bytes, *, whole: bool) -> str:
    """The caption or the translation in an answer, or in the events of one. Raises SlotwiseError where it broke off."""
    if whole:
        answer = json.loads(body)
        if "caption" in answer:
            return str(answer["caption"])
        (result,) = answer["result"]
        if "text" not in result:
            raise SlotwiseError(f"the record was refused: {result}")
        return str(result["text"])
    lines = body.decode().splitlines()  # the chunks' own lines are no events
    if "event: end" not in lines:
        raise SlotwiseError(f"a stream without an end: {body[-200:]!r}")
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    return "".join(piece["text"] for piece in data if "text" in piece)
