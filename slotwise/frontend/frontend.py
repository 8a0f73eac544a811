"""Keep the state of one gateway: its server, the models there, and their limits.

`slotwise serve` and `slotwise apply` write a record of the server. When the record names another server, the next request
goes there; the old server answers what is in flight at it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.backends.remote.server_view import MAX_BODY_BYTES, Backend, ModelLoader
from slotwise.backends.remote.upstream import Upstream
from slotwise.errors import SlotwiseError
from slotwise.frontend.admission.keys import KeyFile
from slotwise.frontend.admission.killers import Killers
from slotwise.frontend.admission.large_work import LargeWork, LoopBlocks
from slotwise.frontend.admission.limits import MemoryBudget, derived_budget
from slotwise.frontend.catalog import ModelCard, model_card
from slotwise.frontend.http.client_address import TrustedProxies
from slotwise.frontend.metrics import GatewayMetrics
from slotwise.frontend.readiness import Readiness
from slotwise.frontend.rollout.canary import Rollouts
from slotwise.frontend.traffic import ModelTraffic

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel
    from slotwise.server.lifecycle import ServerRecord

log = logging.getLogger("slotwise.gateway")

OTHER = "other"  # the limit and the metrics' label of a model that the server's list does not (yet) hold
WATCH_S, FIRST_LOOK_S = 0.5, 5.0
MODELS_AGE_S, FRESH_S = 5.0, 1.0  # of the list of models: while all is well, and else
RATE_OVER_S = 10.0
LOADING_S = 120.0  # what the server before it had is taken for being loaded so long after a switch, not for unknown


@dataclass(frozen=True)
class GatewayOptions:
    """The gateway's options. in_flight 0: two batches for each worker; queued -1: one more batch for each worker.

    max_memory_bytes: for all requests together; 0: by the container's limit (limits.derived_budget).

    default_model: what /invocations asks; "": the only one. max_form_fields: a form of more is refused. trusted_proxies: those
    that say whose a request is.
    """

    timeout_s: float = 60.0
    max_memory_bytes: int = 0
    in_flight: int = 0
    queued: int = -1
    hedge: bool = True
    default_model: str = ""
    max_form_fields: int = 1000
    trusted_proxies: TrustedProxies = field(default_factory=TrustedProxies)


@dataclass
class Gateway:
    """One gateway. draining: SIGTERM has come; it is not ready any more, but still answers requests.

    loader: loads models as SageMaker says, which alone knows which of them should be there.
    """

    backend: Backend
    options: GatewayOptions = field(default_factory=GatewayOptions)
    keys: KeyFile | None = None
    loader: ModelLoader | None = None
    draining: bool = False
    reachable: bool = False
    upstream: Upstream | None = None
    max_body_bytes: int = MAX_BODY_BYTES
    models: dict[str, LiveModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metrics = GatewayMetrics()
        self.body_memory = MemoryBudget(self.options.max_memory_bytes or derived_budget())
        self.large_work, self.loop_blocks = LargeWork(), LoopBlocks()
        self.metrics.memory.set_function(lambda: self.body_memory.now_bytes)
        self.metrics.loop_block.set_function(lambda: self.loop_blocks.longest_s)
        self.killers = Killers()
        self.rollouts = Rollouts()
        self._traffic: dict[str, ModelTraffic] = {}
        self.readiness = Readiness()
        self._look_soon = False
        self._former: set[str] = set()  # those that the server before this one had, and this one has not had yet
        self._switched_at = float("-inf")
        self._cards: dict[str, ModelCard] = {}
        self._retired: set[Upstream] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()
        self._models_at = float("-inf")
        self._samples: deque[tuple[float, int]] = deque()
        self._add_traffic(OTHER, hedge=False)  # an unknown model may have side effects

    # For the hot path.

    def label(self, model: str) -> str:
        """The model's name where the server has it, else "other": a stranger's names must not fill the memory."""
        return model if model in self.models else OTHER

    def traffic(self, model: str) -> ModelTraffic:
        """The traffic that a request to `model` is part of."""
        return self._traffic[self.label(model)]

    def still_loading(self, model: str) -> bool:
        """Whether the server has only just taken the place of one that had this model, and has not got it yet."""
        return model in self._former and time.monotonic() - self._switched_at < LOADING_S

    # For the page, the API and the metrics.

    def ready(self) -> bool:
        """Whether it should be sent requests: it is not ending, and one of its models is ready.

        Where models are loaded as they are asked for: the server answers.
        """
        served = self.readiness.any_model if self.loader is None else self.readiness.server
        return served and not self.draining

    def model_ready(self, model: str) -> bool:
        """Whether requests to that model should be sent here."""
        return self.readiness.model(model) and not self.draining

    def look_soon(self) -> None:
        """Have the watch look at the server soon: something is not as it is known to be."""
        self._look_soon = True

    def workers(self) -> dict[str, str]:
        """Every model's READY workers, in words."""
        if not self.reachable:
            return {name: "the server does not answer" for name in self.models}
        return {name: f"{model.ready_workers} of {len(model.workers)} workers" for name, model in self.models.items()}

    def status(self) -> dict[str, Any]:
        """What the page's status strip shows."""
        record = self.upstream.record if self.upstream else None
        return {
            "ready": self.ready(),
            "draining": self.draining,
            "server": record
            and {"kind": record.kind, "profile": record.profile, "pid": record.pid, "reachable": self.reachable},
            "rollouts": self.rollouts.shown(),
            "leaving": sum(old.in_flight for old in self._retired),
            "requests_per_s": self._rate(),
            "longest_block_ms": round(self.loop_blocks.longest_s * 1000, 1),
            "models": self.described(),
        }

    def described(self) -> list[dict[str, Any]]:
        """Every model with its settings and what is in flight."""
        return [{**_settings(model), **self._traffic[name].shown()} for name, model in sorted(self.models.items())]

    def card(self, model: str) -> ModelCard:
        """What a model takes; the empty card for a model that the server does not have."""
        return self._cards.get(model, ModelCard())

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
            await self._refreshed()
            now = time.monotonic()
            self._samples.append((now, self.metrics.answered))
            while now - self._samples[0][0] > RATE_OVER_S:
                self._samples.popleft()
            await asyncio.sleep(WATCH_S)

    async def first_look(self) -> None:
        """Find the server before the first request comes; one that answers slowly is not waited for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._refreshed()

    async def _refreshed(self) -> None:
        try:
            await self.refresh(MODELS_AGE_S if self.readiness.settled and not self._look_soon else FRESH_S)
        except Exception:
            log.exception("the server's state cannot be read")

    async def refresh(self, max_age_s: float) -> None:
        """Look at the server's record; ask the server for its models where the list is older than `max_age_s`."""
        async with self._lock:
            record, wanted = await asyncio.to_thread(lambda: (self.backend.find(), self.backend.rollouts()))
            self.rollouts.follow(wanted)
            if record is not None and (self.upstream is None or record.run_id != self.upstream.record.run_id):
                await self._switch(record)
                return
            if record is not None and self.upstream is not None:
                self.upstream.record = record  # scaled: the same run, with other settings
            if time.monotonic() - self._models_at >= max_age_s:
                await self._read_models(record)

    async def _switch(self, record: ServerRecord) -> None:
        """Send every new request to the server of `record`; close the old one's connections once they are idle."""
        new = Upstream(record, self.backend.auth, await asyncio.to_thread(self.backend.max_answer_bytes, record))
        old = self.upstream
        try:
            await new.renew_token(new.token)
        except SlotwiseError as error:
            log.warning("no token for the server: %s", error)
        if old is not None:
            self._former, self._switched_at = self._former | self.readiness.served, time.monotonic()
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
        old.close()

    async def _read_models(self, record: ServerRecord | None) -> None:
        answering = {name for name, traffic in self._traffic.items() if traffic.was_answered()}
        self._look_soon = False
        try:
            if record is None:
                raise SlotwiseError("no server is running")
            models, cards = await asyncio.to_thread(self._found, record)
        except (SlotwiseError, OSError) as error:
            if self.reachable:
                log.warning("the model server does not answer: %s", error)
            self.reachable = False
            self.readiness.look(None, answering)
        else:
            self.reachable = True
            self._follow(models, cards)
            self.readiness.look({name: model.ready_workers > 0 for name, model in models.items()}, answering)
        self.metrics.up.set(self.reachable)
        self._models_at = time.monotonic()

    def _found(self, record: ServerRecord) -> tuple[dict[str, LiveModel], dict[str, ModelCard]]:
        """The server's models and their cards; both are read from elsewhere, so not on the event loop."""
        models = self.rollouts.with_stand_ins({model.name: model for model in self.backend.models(record)})
        cards = {name: model_card(name, record.model_store / Path(model.archive).name) for name, model in models.items()}
        return models, cards

    def _follow(self, models: dict[str, LiveModel], cards: dict[str, ModelCard]) -> None:
        """Have the traffic of these models, and nothing of those that are gone."""
        self.models, self._cards = models, cards
        self._former -= models.keys()
        for name, model in models.items():
            if name not in self._traffic:
                self._add_traffic(name, hedge=True)
            self._traffic[name].fit(model)
            self._traffic[name].hedging.enabled = self.options.hedge and cards[name].hedge
        self._traffic = {name: traffic for name, traffic in self._traffic.items() if name in models or name == OTHER}
        self.metrics.keep(self._traffic)

    def _add_traffic(self, name: str, hedge: bool) -> None:
        traffic = ModelTraffic(self.options.in_flight, self.options.queued, self.options.hedge and hedge)
        self._traffic[name] = traffic
        self.metrics.watch(name, traffic.limit)

    async def close(self) -> None:
        """Close every connection."""
        for task in list(self._closing):
            task.cancel()
        for upstream in [*self._retired, *([self.upstream] if self.upstream else [])]:
            upstream.close()
        self.large_work.close()


def _settings(model: LiveModel) -> dict[str, Any]:
    keys = ("name", "version", "batch_size", "max_batch_delay", "profile", "engine", "precision")
    settings = {key: getattr(model, key) for key in keys}
    return {**settings, "workers": len(model.workers), "ready_workers": model.ready_workers}
