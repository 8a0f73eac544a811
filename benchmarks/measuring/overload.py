"""The gateway at twice its capacity: what it answers, refuses and needs."""

from __future__ import annotations

import threading
from typing import Any

import psutil

from slotwise.bench import load
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.console import say
from slotwise.frontend import process as gateway_process


def overload(target: Target, front: gateway_process.GatewayRecord, bodies: list[RequestBody], seconds: float) -> dict[str, Any]:
    """As many clients as the gateway lets in, then arrivals at twice the rate that this gave."""
    limits = front.status()["models"][0]
    clients = limits["in_flight_max"] + limits["queue_max"]
    full = load.measure(target, bodies, LoadPlan(clients, 15, warm_up_s=3))
    say(f"capacity: {full.req_s:.1f} a second with {clients} clients, p99 {full.p99_ms:.0f} ms; now twice that")
    memory: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(1):
            memory.append(psutil.Process(front.pid).memory_info().rss / 2**20)

    watcher = threading.Thread(target=watch)
    watcher.start()
    over = load.measure(target, bodies, LoadPlan(1000, seconds, warm_up_s=3, rate=2 * full.req_s, timeout_s=30))
    ended.set()
    watcher.join()
    return {
        "capacity": {"clients": clients, "req_s": round(full.req_s, 1), "p99_ms": round(full.p99_ms, 1), "errors": full.errors},
        "offered_req_s": round(2 * full.req_s, 1),
        "seconds": seconds,
        "requests": over.requests,
        "accepted_req_s": round(over.req_s, 1),
        "p99_ms": round(over.p99_ms, 1),
        "p99_ratio": round(over.p99_ms / full.p99_ms, 2),
        "errors": over.errors,
        "client_limited": over.client_limited,
        "gateway_memory_mib": {"first": round(memory[2], 1), "last": round(memory[-1], 1), "most": round(max(memory), 1)},
    }
