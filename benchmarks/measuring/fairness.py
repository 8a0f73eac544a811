"""One client with hundreds of requests under way, beside one with a single request at a time, on our own host.

    python -m benchmarks.measuring.fairness --rounds 5 --json FILE

Both have an address and a process of their own on this machine. Each round asks the second client's requests alone
and beside the first one. What is to hold: its p99 beside it is at most 1.5 times what it has alone, and one batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.measuring.about import about
from benchmarks.measuring.servers import built, server
from slotwise.client.inference import auth_headers
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.deploy.deploy import deploy, registration
from slotwise.profiles.profile import load_profile

MANY, MANY_FROM, ONE_FROM = 512, "127.0.0.2", "127.0.0.3"


class Client:
    """A connection from an address of its own, with one request at a time."""

    def __init__(self, url: str, token: str, body: bytes, address: str) -> None:
        self.where, self.address = urlsplit(url), address
        head = f"POST {self.where.path} HTTP/1.1\r\nHost: {self.where.netloc}\r\n{token}Content-Length: {len(body)}\r\n\r\n"
        self.asked = head.encode() + body

    async def ask(self, until: float, latencies_s: list[float], requests: int = sys.maxsize) -> None:
        """Ask again and again. Raises RuntimeError where an answer is no 200."""
        reader, writer = await asyncio.open_connection(self.where.hostname, self.where.port, local_addr=(self.address, 0))
        while time.monotonic() < until and len(latencies_s) < requests:
            began = time.monotonic()
            writer.write(self.asked)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            body = await reader.readexactly(length)
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError((head + body).decode("latin-1"))
            latencies_s.append(time.monotonic() - began)
        writer.close()


async def many(url: str, token: str, body: bytes) -> None:
    """The first client: so many requests under way, for ever; a line is printed when each has been answered once."""
    latencies: list[float] = []
    client = Client(url, token, body, MANY_FROM)
    asked = [asyncio.ensure_future(client.ask(math.inf, latencies)) for _ in range(MANY)]
    while len(latencies) < 2 * MANY:
        await asyncio.sleep(0.1)
        for one in asked:
            if one.done():
                one.result()
    print("ready", flush=True)
    await asyncio.gather(*asked)


def quantiles_ms(latencies_s: list[float]) -> dict[str, float]:
    """p50 and p99."""
    cuts = statistics.quantiles(latencies_s, n=100)
    return {"p50_ms": round(cuts[49] * 1000, 3), "p99_ms": round(cuts[98] * 1000, 3), "requests": len(latencies_s)}


def measure(rounds: int, requests: int, model: str, work: Path) -> dict[str, Any]:
    """Every round: alone, then beside the other client."""
    info, found = built(model, work), []
    example = next(Path("models", model, "examples").iterdir()).read_bytes()
    with server(work, "slotwise") as record:
        with ManagementClient(record) as client:
            deploy(client, info, registration(info, load_profile("cpu", environ={}), {}))
        url = record.prediction_url(info.name)
        token = "".join(f"{name}: {value}\r\n" for name, value in auth_headers(record).items())
        one = Client(url, token, example, ONE_FROM)

        def asked() -> dict[str, float]:
            latencies: list[float] = []
            asyncio.run(one.ask(time.monotonic() + 60, latencies, requests))
            return quantiles_ms(latencies)

        asked()
        for i in range(rounds):
            alone = asked()
            command = [sys.executable, "-m", "benchmarks.measuring.fairness", "--many", url, token, example.hex()]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
                if not other.stdout or other.stdout.readline() != "ready\n":
                    raise RuntimeError("the client with many requests got an error")
                beside = asked()
                other.kill()
            found.append({"alone": alone, "beside": beside})
            say(f"round {i + 1}: {found[-1]}")
        with ManagementClient(record) as client:
            live = client.describe(info.name)
    cost = getattr(live, "batch_cost", None) or {}  # an earlier release does not say it
    batch_ms = cost["batch_ms"] + cost["request_ms"] * live.batch_size if cost else None
    return {"model": model, "many": MANY, "rounds": found, "cost": cost, "full_batch_ms": batch_ms, **_verdict(found, batch_ms)}


def _verdict(found: list[dict[str, Any]], batch_ms: float | None) -> dict[str, Any]:
    alone, beside = (statistics.median(one[which]["p99_ms"] for one in found) for which in ("alone", "beside"))
    said: dict[str, Any] = {"alone_p99_ms": alone, "beside_p99_ms": beside}
    if batch_ms is not None:
        said |= {"allowed_ms": round(1.5 * alone + batch_ms, 3), "held": beside <= 1.5 * alone + batch_ms}
    return said


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--many", nargs=3)
    options = parser.parse_args()
    if options.many:
        url, token, body = options.many
        asyncio.run(many(url, token, bytes.fromhex(body)))
        return
    with tempfile.TemporaryDirectory() as work:
        result = {**about(), **measure(options.rounds, options.requests, options.model, Path(work))}
    text = json.dumps(result, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
