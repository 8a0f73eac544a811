"""Two nodes of Ray on one machine, with a stand-in that only sleeps: replicas that need no core of their own."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.measuring.scaling import Proxy
from slotwise.bench.bodies import RequestBody
from slotwise.bench.offline import LinearTime
from slotwise.console import say
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.simulate import ServiceTimes, simulate
from slotwise.tune.space import TrialSetting

if TYPE_CHECKING:
    from slotwise.archive.archive_info import ArchiveInfo
    from slotwise.server.record import ServerRecord

LINE = LinearTime(a_ms=25.0, b_ms=50.0)  # about ResNet-18's; four replicas are below what one proxy lets through
BATCH_SIZE = 8
EACH = 2  # replicas on a node
REPLICAS = (1, 2, 4)
BATCHES = 40  # of each replica, simulated


def simulated(proxy: Proxy, setting: TrialSetting, clients: int) -> dict[str, float]:
    """What the page's simulation says: every replica has a core for itself."""
    service = ServiceTimes(LINE, cores=setting.workers, request_ms=proxy.request_ms)
    result = simulate(service, setting, clients, requests=BATCHES * setting.batch_size * setting.workers)
    return {"simulated_rps": round(min(result.req_s, proxy.proxy_rps), 1), "simulated_p99_ms": round(result.p99_ms, 1)}


def measure(record: ServerRecord, info: ArchiveInfo, proxy: Proxy, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """A row for each number of replicas: each has a batch in work and one that waits."""
    found = []
    single = TrialSetting(batch_size=BATCH_SIZE, max_batch_delay=5, workers=1, threads=1)
    with LiveBench(record, info, [RequestBody(b"x")]) as bench:
        for replicas in REPLICAS:
            setting, clients = replace(single, workers=replicas), 2 * BATCH_SIZE * replicas
            loads = [bench.measure(setting, clients, seconds) for _ in range(rounds)]
            row = {
                "replicas": replicas,
                "nodes": -(-replicas // EACH),
                "clients": clients,
                "rps": round(median(load.req_s for load in loads), 1),
                "p99_ms": round(median(load.p99_ms for load in loads), 1),
                "mean_batch": round(median(load.mean_batch for load in loads), 1),
                "rounds": [round(load.req_s, 1) for load in loads],
                **simulated(proxy, setting, clients),
            }
            say(str(row))
            found.append(row)
    return found
