"""The models that this host serves: each one's versions, the default one first."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from slotwise.backends.exchange import BackendRequest, Refused
from slotwise.backends.local.dispatcher import WAITS
from slotwise.backends.local.served_model import ServedModel
from slotwise.host.workers_by_load import WHYS, WorkersByLoad
from slotwise.profiles.memory import resident_bytes
from slotwise.worker.reports.handler_metrics import prometheus_name

LOADING_S = 120.0  # so long who starts a host has for its models, and a gateway waits for those that it knew
MOST_NAMES, LONGEST_NAME = 1000, 100  # of one model's metrics: a handler may make up a name for every request

WorkerNumbers = dict[tuple[str, str], float]  # of a metric: by model and HTTP status
ENDS = ("died", "slow", "silent", "protocol", "start", "memory")

# The metrics of every version, and what they mean. Some have a label of their own.
GAUGES = {
    "slotwise_host_waiting_requests": "Requests that wait for a worker.",
    "slotwise_host_aside_requests": "Requests that wait, too late for the target, while others go first.",
    "slotwise_host_oldest_waiting_seconds": "How long the request waits that has waited for longest.",
    "slotwise_host_suspected_requests": "Requests that go alone, because a worker died that had them.",
    "slotwise_host_open_requests": "Admitted requests without an outcome yet; 0 at rest.",
    "slotwise_host_ready_workers": "Workers that take requests.",
    "slotwise_host_asleep": "1 while a model sleeps, because nobody asks it.",
    "slotwise_host_wanted_workers": "Workers that a model is to have.",
    "slotwise_host_worker_memory_bytes": "What all workers take, memory that they share counted in each.",
    "slotwise_host_batch_cost_seconds": "A batch of n takes batch + n request seconds.",
}
COUNTERS = {
    "slotwise_host_requests": "Admitted requests by how they ended.",
    "slotwise_host_batches": "Batches that are over.",
    "slotwise_host_refused": "Requests refused at a full queue, or as too late.",
    "slotwise_host_batch_choices": 'Batches that "auto" chose, or would have chosen.',
    "slotwise_host_batch_waits": (
        'How often "auto" let a worker wait after a batch (pays), or not: enough, nobody, short, limit.'
    ),
    "slotwise_host_worker_ends": f"Workers that ended and were not told to, by reason: {', '.join(ENDS)}.",
    "slotwise_host_worker_changes": (
        f"Changes of the number of workers by load, made or advised, by reason: {', '.join(WHYS)}."
    ),
}
LABELS = {"slotwise_host_requests": ["outcome"], "slotwise_host_batch_cost_seconds": ["part"]} | {
    f"slotwise_host_{name}": ["reason"] for name in ("refused", "batch_choices", "batch_waits", "worker_ends", "worker_changes")
}


@dataclass(eq=False)
class ModelVersions(Collector):
    """Every served version of every model. Everything happens on the host's event loop.

    changed: how often models came, went or were scaled. patience_s: what requests have that are there when a model goes.
    by_load: what chooses how many workers a model has, where its load does. loading: what a deployment starts with is not all
    there yet, so nobody knows of what else there will be none.
    """

    by_name: dict[str, dict[str, ServedModel]] = field(default_factory=dict)
    changed: int = 0
    gauges: dict[str, WorkerNumbers] = field(default_factory=dict)
    counts: dict[str, WorkerNumbers] = field(default_factory=dict)
    patience_s: float = 30.0
    by_load: dict[ServedModel, WorkersByLoad] = field(default_factory=dict)
    loading: bool = False
    _expected: Counter[str] = field(default_factory=Counter)  # versions of each
    _expected_until: float = 0.0  # on time.monotonic's clock
    _told: bool = False  # what comes, so nothing else does
    _names: dict[str, set[str]] = field(default_factory=dict)  # of each model's metrics

    def expect(self, names: Iterable[str]) -> None:
        """These models are registered next, each as often as it is named: requests may be sent again, two minutes at most."""
        self._expected |= Counter(names)
        self._expected_until = time.monotonic() + LOADING_S
        self._told |= bool(self._expected)

    def _comes(self, name: str) -> bool:
        """Whether a version of a model is registered next."""
        return bool(self._expected[name]) and time.monotonic() < self._expected_until

    def find(self, name: str, version: str = "") -> ServedModel:
        """What answers requests to a model; without a version, the default one's. Raises Refused (404, or 503)."""
        versions = self.by_name.get(name)
        served = versions and (versions.get(version) if version else next(iter(versions.values())))
        if not served and (self.loading or self._comes(name)):
            raise Refused(503, "models are being loaded", retry_after_s=1)
        if not served:
            raise Refused(404, "there is no such model" if not versions else "the model has no such version")
        return served

    def not_run(self, request: BackendRequest, but: ServedModel | None = None) -> None:
        """No version runs a request, but for that one: a sequence that it was to begin is over in all others.

        Where it names a version, in that one alone: else any of them may have been the default when the sequence began.
        """
        for one in self.by_name.get(request.model, {}).values():
            if one is not but and request.version in ("", one.settings.version):
                one.queue.not_run(request)

    def waits_for(self, name: str) -> bool:
        """Whether a model may be there soon, or none of its workers is ready although they may become so."""
        served = next(iter(self.by_name.get(name, {}).values()), None)
        if served is None:
            return not self._told or self._comes(name)
        return bool(served.wanted) and not (served.queue.workers or served.failure or served.asleep)

    def response_timeout_s(self, request: BackendRequest) -> float:
        """How long a worker may take for a request; 0 where there is no such model."""
        with suppress(Refused):
            return self.find(request.model, request.version).settings.response_timeout_s
        return 0.0

    def full_queue_s(self, request: BackendRequest) -> float:
        """How long the last one of a full queue waits at most, where one worker takes one at a time; 0 as above."""
        with suppress(Refused):
            settings = self.find(request.model, request.version).settings
            return (settings.job_queue_size + 1) * settings.response_timeout_s
        return 0.0

    def piece_timeout_s(self, request: BackendRequest) -> float:
        """How long a piece may take, of a model that sends them unasked; 0 where it does not, or there is none."""
        with suppress(Refused):
            settings = self.find(request.model, request.version).settings
            return settings.response_timeout_s if settings.pieces else 0.0
        return 0.0

    def add(self, served: ServedModel, *, default: bool) -> None:
        """Serve a version, from now on."""
        name, version = served.settings.name, served.settings.version
        self._expected -= Counter([name])
        versions = self.by_name.get(name, {})
        self.by_name[name] = {version: served, **versions} if default else {**versions, version: served}
        self.changed += 1

    def set_default(self, name: str, version: str) -> None:
        """Requests without a version go there, from now on."""
        chosen = self.by_name[name][version]
        self.by_name[name] = {version: chosen, **self.by_name[name]}
        self.changed += 1

    async def remove(self, name: str, version: str) -> None:
        """Serve a version no longer, once what it has in hand is answered."""
        served = self.by_name[name].pop(version)
        if not self.by_name[name]:
            del self.by_name[name]
        self.changed += 1
        await served.close(self.patience_s)

    async def close(self) -> None:
        """End every worker."""
        every = list(self.all())
        self.by_name.clear()
        await asyncio.gather(*(served.close(self.patience_s) for served in every))

    def all(self) -> Iterator[ServedModel]:
        """Every served version."""
        for versions in self.by_name.values():
            yield from versions.values()

    # Metrics.

    def measured(self, model: str, name: str, value: float, unit: str, code: int | None) -> None:
        """Take one of a worker's numbers: a count where it has no unit, else what it is now. Raises TypeError, ValueError."""
        value, name, names = float(value), prometheus_name(name)[:LONGEST_NAME], self._names.setdefault(model, set())
        if code is not None and (type(code) is not int or not 100 <= code <= 599):
            return
        if not name or (name not in names and len(names) >= MOST_NAMES):
            return
        names.add(name)
        of = (model, "" if code is None else str(code))
        if unit:
            self.gauges.setdefault(name, {})[of] = value
        else:
            numbers = self.counts.setdefault(name, {})
            numbers[of] = numbers.get(of, 0.0) + value

    def told_elsewhere(self, name: str) -> bool:
        """Whether a worker's number stands among other metrics of this process already."""
        return False

    def collect(self) -> Iterable[Metric]:
        """What Prometheus reads: the balance of each model, its workers, and what these say of themselves."""
        families = {
            name: kind(name, text, labels=["model", "version", *LABELS.get(name, ())])
            for kind, texts in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS))
            for name, text in texts.items()
        }
        for served in list(self.all()):
            version = [served.settings.name, served.settings.version]
            for name, number in _numbers(served, self.by_load.get(served)).items():
                for label, one in number.items() if isinstance(number, Mapping) else [(None, number)]:
                    families[name].add_metric(version if label is None else [*version, label], one)
        yield from families.values()
        for name, values in [*self.gauges.items(), *self.counts.items()]:
            if self.told_elsewhere(name):
                continue
            metric = Metric(name, "What workers say, under the name that it has on TorchServe.", "unknown")
            for (model, code), value in list(values.items()):
                metric.add_sample(name, {"ModelName": model, "Code": code}, value)
            yield metric


def _numbers(served: ServedModel, chooser: WorkersByLoad | None) -> dict[str, float | Mapping[str, float]]:
    """A version's number in each metric; where that has a label of its own, the numbers by its values."""
    queue, dispatcher = served.queue, served.queue.dispatcher
    now, cost = queue.loop.time(), dispatcher.cost
    return {
        "slotwise_host_waiting_requests": len(queue.waiting),
        "slotwise_host_aside_requests": queue.waiting.aside,
        "slotwise_host_oldest_waiting_seconds": now - min((one.came_at for one in queue.waiting), default=now),
        "slotwise_host_suspected_requests": len(queue.suspects),
        "slotwise_host_open_requests": served.ledger.open,
        "slotwise_host_ready_workers": len(queue.workers),
        "slotwise_host_asleep": served.asleep,
        "slotwise_host_wanted_workers": served.wanted,
        "slotwise_host_worker_memory_bytes": sum(resident_bytes(link.pid) for link in served.links),
        "slotwise_host_batch_cost_seconds": {"batch": cost.each_s, "request": cost.request_s} if cost.known else {},
        "slotwise_host_requests": {str(outcome): count for outcome, count in served.ledger.ended.items()},
        "slotwise_host_batches": cost.batches,
        "slotwise_host_refused": {why: dispatcher.refused[why] for why in ("full", "late")},
        "slotwise_host_batch_choices": {why: dispatcher.chosen[why] for why in ("all", "target", "late")},
        "slotwise_host_batch_waits": {why: dispatcher.waits[why] for why in WAITS},
        "slotwise_host_worker_ends": {why: served.ends[why] for why in ENDS},
        "slotwise_host_worker_changes": {why: chooser.counts[why] if chooser else 0 for why in WHYS},
    }
