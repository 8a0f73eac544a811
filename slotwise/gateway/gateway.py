"""Keep the state of one gateway: its server, the models there, and their limits.

`slotwise serve` and `slotwise apply` write a record of the server. When the record names another server, the next request
goes there; the old server answers what is in flight at it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.errors import SlotwiseError
from slotwise.gateway.backend import MAX_BODY_BYTES, Backend
from slotwise.gateway.catalog import ModelCard, model_card
from slotwise.gateway.hedging import Hedging
from slotwise.gateway.limits import ConcurrencyLimit, MemoryBudget
from slotwise.gateway.metrics import GatewayMetrics
from slotwise.gateway.upstream import Upstream

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel
    from slotwise.server.lifecycle import ServerRecord

log = logging.getLogger("slotwise.gateway")

OTHER = "other"  # the limit and the metrics' label of a model that the server's list does not (yet) hold
WATCH_S = 0.5
MODELS_AGE_S = 5.0
RATE_OVER_S = 10.0


@dataclass(frozen=True)
class GatewayOptions:
    """The gateway's options. in_flight 0: two batches for each worker; queued -1: one more batch for each worker."""

    timeout_s: float = 60.0
    max_body_memory_bytes: int = 256 * 2**20
    in_flight: int = 0
    queued: int = -1
    hedge: bool = True


@dataclass
class Gateway:
    """One gateway. draining: SIGTERM has come; it is not ready any more, but still answers requests."""

    backend: Backend
    options: GatewayOptions = field(default_factory=GatewayOptions)
    draining: bool = False
    reachable: bool = False
    upstream: Upstream | None = None
    max_body_bytes: int = MAX_BODY_BYTES
    models: dict[str, LiveModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metrics = GatewayMetrics()
        self.body_memory = MemoryBudget(self.options.max_body_memory_bytes)
        self._limits: dict[str, ConcurrencyLimit] = {}
        self._hedging: dict[str, Hedging] = {}
        self._retired: set[Upstream] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()
        self._models_at = float("-inf")
        self._samples: deque[tuple[float, int]] = deque()
        self._set_limit(OTHER)

    # For the hot path.

    def label(self, model: str) -> str:
        """The model's name where the server has it, else "other": a stranger's names must not fill the memory."""
        return model if model in self.models else OTHER

    def limit(self, model: str) -> ConcurrencyLimit:
        """The limit that a request to `model` is under."""
        return self._limits[self.label(model)]

    def hedging(self, model: str) -> Hedging:
        """When an answer of that model is late, and whether its request may be sent again."""
        return self._hedging[self.label(model)]

    # For the page, the API and the metrics.

    def ready(self) -> bool:
        """Whether a request to any of its models would be answered now."""
        models = self.models.values()
        return not self.draining and self.reachable and bool(models) and all(model.ready_workers for model in models)

    def status(self) -> dict[str, Any]:
        """What the page's status strip shows."""
        record = self.upstream.record if self.upstream else None
        return {
            "ready": self.ready(),
            "draining": self.draining,
            "server": record
            and {"kind": record.kind, "profile": record.profile, "pid": record.pid, "reachable": self.reachable},
            "leaving": sum(old.in_flight for old in self._retired),
            "requests_per_s": self._rate(),
            "models": self.described(),
        }

    def described(self) -> list[dict[str, Any]]:
        """Every model with its settings and what is in flight."""
        return [{**_settings(model), **self._load(name)} for name, model in sorted(self.models.items())]

    def card(self, model: str) -> ModelCard:
        """What a model takes; the empty card for a model that the server does not have."""
        if self.upstream is None or model not in self.models:
            return ModelCard()
        return self._card(self.models[model], self.upstream.record)

    @staticmethod
    def _card(model: LiveModel, record: ServerRecord) -> ModelCard:
        return model_card(model.name, record.model_store / Path(model.archive).name)

    def _load(self, model: str) -> dict[str, int]:
        limit = self._limits[model]
        return {
            "in_flight": limit.running,
            "queued": limit.queued,
            "in_flight_max": limit.in_flight_max,
            "queue_max": limit.queue_max,
        }

    def _rate(self) -> float:
        """Answers a second over the last seconds."""
        now = time.monotonic()
        if not self._samples:
            return 0.0
        then, answered = self._samples[0]
        return round((self.metrics.answered - answered) / max(now - then, WATCH_S), 1)

    # Following the server.

    async def watch(self) -> None:
        """Follow the server's record and its models for ever."""
        while True:
            try:
                await self.refresh(MODELS_AGE_S)
            except Exception:
                log.exception("the server's state cannot be read")
            now = time.monotonic()
            self._samples.append((now, self.metrics.answered))
            while now - self._samples[0][0] > RATE_OVER_S:
                self._samples.popleft()
            await asyncio.sleep(WATCH_S)

    async def refresh(self, max_age_s: float) -> None:
        """Look at the server's record; ask the server for its models where the list is older than `max_age_s`."""
        async with self._lock:
            record = await asyncio.to_thread(self.backend.find)
            if record is not None and (self.upstream is None or record != self.upstream.record):
                await self._switch(record)
            elif time.monotonic() - self._models_at >= max_age_s:
                await self._read_models(record)

    async def _switch(self, record: ServerRecord) -> None:
        """Send every new request to the server of `record`; close the old one's connections once they are idle."""
        new = Upstream(record, self.backend.auth)
        old = self.upstream
        try:
            await new.renew_token(new.token)
        except SlotwiseError as error:
            log.warning("no token for the server: %s", error)
        await self._read_models(record)
        self.max_body_bytes = await asyncio.to_thread(self.backend.max_body_bytes, record)
        self.upstream = new
        log.info("now in front of %s (profile %s) at %s", record.kind, record.profile, record.inference_url)
        if old is not None:
            self.metrics.swaps.inc()
            self._retired.add(old)
            task = asyncio.create_task(self._retire(old))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _retire(self, old: Upstream) -> None:
        if not await old.drained(self.options.timeout_s):
            log.warning("%d requests were still in flight at the old server", old.in_flight)
        self._retired.discard(old)
        await old.close()

    async def _read_models(self, record: ServerRecord | None) -> None:
        try:
            if record is None:
                raise SlotwiseError("no server is running")
            models = await asyncio.to_thread(self.backend.models, record)
            cards = await asyncio.to_thread(lambda: [self._card(model, record) for model in models])
        except (SlotwiseError, OSError) as error:
            if self.reachable:
                log.warning("the model server does not answer: %s", error)
            self.reachable = False
        else:
            self.reachable = True
            self.models = {model.name: model for model in models}
            for model, card in zip(models, cards, strict=True):
                self._set_limit(model.name)
                self._hedging[model.name].enabled = self.options.hedge and card.hedge
        self.metrics.up.set(self.reachable)
        self._models_at = time.monotonic()

    def _set_limit(self, name: str) -> None:
        """Make or resize the limit of a model, so that at the server the next batch is full when one is done."""
        model = self.models.get(name)
        batch = max(len(model.workers), 1) * model.batch_size if model else 16
        in_flight = self.options.in_flight or max(2 * batch, 8)
        queued = self.options.queued if self.options.queued >= 0 else max(batch, 4)
        if name in self._limits:
            self._limits[name].resize(in_flight, queued)
        else:
            self._limits[name] = ConcurrencyLimit(in_flight, queued)
            self._hedging[name] = Hedging(self.options.hedge and name != OTHER)  # an unknown model may have side effects
            self.metrics.watch(name, self._limits[name])

    async def close(self) -> None:
        """Close every connection."""
        for task in list(self._closing):
            task.cancel()
        for upstream in [*self._retired, *([self.upstream] if self.upstream else [])]:
            await upstream.close()


def _settings(model: LiveModel) -> dict[str, Any]:
    keys = ("name", "version", "batch_size", "max_batch_delay", "profile", "engine", "precision")
    settings = {key: getattr(model, key) for key in keys}
    return {**settings, "workers": len(model.workers), "ready_workers": model.ready_workers}
