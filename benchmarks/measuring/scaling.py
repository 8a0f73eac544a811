"""From a*n + b to a cluster: the tuner's simulation for 1 to 1,000 replicas, and what Ray's proxies let through of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotwise.bench.offline import LinearTime
from slotwise.bench.report import panels
from slotwise.tune.simulate import ServiceTimes, simulate
from slotwise.tune.space import TrialSetting

REPLICAS = (1, 3, 10, 30, 100, 300, 1000)
MODELS = {"digits": 16, "resnet18": 8}  # its batch size
BATCHES_EACH = 40  # that a replica answers in a simulation; with few, its beginning and end count too much
NODE_REPLICAS = 4  # on one node, which has one proxy


@dataclass(frozen=True)
class Proxy:
    """What one of Ray's proxies lets through. proxy_rps: small requests a second; request_ms: what it adds to a request."""

    proxy_rps: float
    request_ms: float
    node_replicas: int = NODE_REPLICAS

    @classmethod
    def of(cls, hosts: Iterable[Mapping[str, Any]]) -> Proxy:
        """The front of `slotwise serve --server ray` by MNIST (`figures hosts`): its engine takes less than 1 ms."""
        own = [row for row in hosts if row["system"] == "ray" and row["workload"].startswith("mnist")]
        alone = next(row for row in own if row["concurrency"] == 1)
        return cls(round(max(row["rps"] for row in own)), alone["p50_ms"])


RAYS_OWN = Proxy(194, 10.0)  # MNIST through Ray's own proxy, measured on 2026-11-23 at 783334a


def rows(lines: dict[str, LinearTime], proxy: Proxy) -> list[dict[str, Any]]:
    """A row for each model and number of replicas: every replica has a batch in work and one that waits."""
    found = []
    for model, batch_size in MODELS.items():
        for replicas in REPLICAS:
            setting = TrialSetting(batch_size=batch_size, max_batch_delay=0, workers=replicas, threads=1)
            service = ServiceTimes(lines[model], cores=replicas, request_ms=proxy.request_ms, noise=0.05)
            clients = 2 * batch_size * replicas
            result = simulate(service, setting, clients, requests=BATCHES_EACH * batch_size * replicas)
            nodes = -(-replicas // proxy.node_replicas)
            found.append(
                {
                    "model": model,
                    "replicas": replicas,
                    "clients": clients,
                    "rps": round(result.req_s, 1),
                    "p99_ms": round(result.p99_ms, 1),
                    "one_proxy_rps": round(min(result.req_s, proxy.proxy_rps), 1),
                    "every_node_rps": round(min(result.req_s, proxy.proxy_rps * nodes), 1),
                }
            )
    return found


def draw(found: list[dict[str, Any]], target: Path) -> None:
    """The answers a second over the replicas, one panel a model."""
    figure, axes = panels(len(MODELS), columns=2)
    for axis, model in zip(axes, MODELS, strict=True):
        own = [row for row in found if row["model"] == model]
        x = [row["replicas"] for row in own]
        for key, label in (("rps", "replicas alone"), ("every_node_rps", "a proxy a node"), ("one_proxy_rps", "one proxy")):
            axis.plot(x, [row[key] for row in own], "o-", label=label)
        axis.set(xlabel="replicas", ylabel="answers a second", title=model, xscale="log", yscale="log")
        axis.legend()
    figure.savefig(target, format="svg")
