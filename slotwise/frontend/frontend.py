"""Keep the state of one gateway: its backend, the models there, and their limits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from slotwise.backends.catalog import ModelCard
from slotwise.backends.interface import Backend, BackendRequest
from slotwise.backends.metric_labels import OTHER
from slotwise.frontend import replies
from slotwise.frontend.admission.keys import KeyFile
from slotwise.frontend.admission.killers import Killers
from slotwise.frontend.admission.large_work import LargeWork, LoopBlocks
from slotwise.frontend.admission.limits import MemoryBudget, derived_budget
from slotwise.frontend.http.client_address import TrustedProxies
from slotwise.frontend.metrics import GatewayMetrics
from slotwise.frontend.observing.observer import Observer
from slotwise.frontend.readiness import Readiness
from slotwise.frontend.replies import ErrorOf, HeaderFilter
from slotwise.frontend.rollout.canary import Rollouts
from slotwise.frontend.rollout.record import RolloutRecord
from slotwise.frontend.traffic import ModelTraffic

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel

log = logging.getLogger("slotwise.gateway")

WATCH_S, FIRST_LOOK_S = 0.5, 5.0
MODELS_AGE_S, FRESH_S = 5.0, 1.0  # of the list of models: while all is well, and else
RATE_OVER_S = 10.0

Cards = dict[tuple[str, str], ModelCard]  # by model and version; "": its default


@dataclass(frozen=True)
class GatewayOptions:
    """The gateway's options. in_flight 0: two batches for each worker; queued -1: one more batch for each worker.

    max_memory_bytes: for all requests together; 0: by the container's limit (limits.derived_budget).

    default_model: what /invocations asks; "": the only one. max_form_fields: a form of more is refused. trusted_proxies: those
    that say whose a request is. to_model, to_client: which headers go on, to the model and back. error_of: an error of
    the server's or the handler's, as its client gets it. model_wait_s: how long its model lets a request wait for its answer,
    where that is longer than timeout_s.
    """

    timeout_s: float = 60.0
    model_wait_s: Callable[[BackendRequest], float] = lambda request: 0.0
    max_memory_bytes: int = 0
    in_flight: int = 0
    queued: int = -1
    hedge: bool = True
    default_model: str = ""
    max_form_fields: int = 1000
    trusted_proxies: TrustedProxies = field(default_factory=TrustedProxies)
    to_model: HeaderFilter = replies.to_model
    to_client: HeaderFilter = replies.to_client
    error_of: ErrorOf = replies.error_from_server


@dataclass
class Gateway:
    """One gateway. draining: SIGTERM has come; it is not ready any more, but still answers requests.

    on_demand: models are loaded as SageMaker says, which alone knows which of them should be there. rollout_records: what
    `slotwise rollout` wants. observer: sees every request; None: nobody wants to know.
    """

    backend: Backend
    options: GatewayOptions = field(default_factory=GatewayOptions)
    keys: KeyFile | None = None
    on_demand: bool = False
    rollout_records: Callable[[], Sequence[RolloutRecord]] = tuple
    draining: bool = False
    models: dict[str, LiveModel] = field(default_factory=dict)
    observer: Observer | None = None

    def __post_init__(self) -> None:
        self.metrics = GatewayMetrics(self.backend.registry)
        self.body_memory = MemoryBudget(self.options.max_memory_bytes or derived_budget())
        self.large_work, self.loop_blocks = LargeWork(), LoopBlocks()
        self.metrics.memory.set_function(lambda: self.body_memory.now_bytes)
        self.metrics.memory_limit.set(self.body_memory.max_bytes)
        self.metrics.loop_block.set_function(lambda: self.loop_blocks.longest_s)
        self.killers = killers = Killers()
        self.metrics.convicted.set_function(lambda: killers.count)
        self.rollouts = Rollouts()
        self._traffic: dict[str, ModelTraffic] = {}
        self.readiness = Readiness()
        self._rollout_records: Sequence[RolloutRecord] = ()
        self._followed = 0  # the backend's looks, when its models were followed last
        self._cards: Cards = {}
        self._lock = asyncio.Lock()
        self._samples: deque[tuple[float, int]] = deque()
        self._add_traffic(OTHER, repeatable=False)  # an unknown model may have side effects

    # For the hot path.

    def label(self, model: str) -> str:
        """The model's name where the server has it, else "other": a stranger's names must not fill the memory."""
        return model if model in self.models else OTHER

    def traffic(self, model: str) -> ModelTraffic:
        """The traffic that a request to `model` is part of."""
        return self._traffic[self.label(model)]

    # For the page, the API and the metrics.

    def ready(self) -> bool:
        """Whether it should be sent requests: it is not ending, and one of its models is ready.

        Where models are loaded as they are asked for: the server answers.
        """
        served = self.readiness.any_model if not self.on_demand else self.readiness.server
        return served and not self.draining

    def model_ready(self, model: str, version: str = "") -> bool:
        """Whether requests to that version of a model should be sent here. "": its default."""
        other = self.backend.others.get((model, version))
        ready = self.readiness.model(model) if other is None else other.ready_workers > 0 and self.backend.reachable
        return ready and not self.draining

    def look_soon(self) -> None:
        """Have the watch look at the server soon: something is not as it is known to be."""
        self.backend.look_soon = True

    def workers(self) -> dict[str, str]:
        """Every model's READY workers, in words."""
        if not self.backend.reachable:
            return {name: "the server does not answer" for name in self.models}
        return {name: f"{model.ready_workers} of {len(model.workers)} workers" for name, model in self.models.items()}

    def status(self) -> dict[str, Any]:
        """What the page's status strip shows."""
        return {
            "ready": self.ready(),
            "draining": self.draining,
            "server": self.backend.about(),
            "rollouts": self.rollouts.shown(),
            "leaving": self.backend.leaving,
            "requests_per_s": self._rate(),
            "longest_block_ms": round(self.loop_blocks.longest_s * 1000, 1),
            "remembers": self.observer is not None and self.observer.remembered is not None,
            "models": self.described(),
        }

    def described(self) -> list[dict[str, Any]]:
        """Every model with its settings and what is in flight."""
        return [{**_settings(model), **self._traffic[name].shown()} for name, model in sorted(self.models.items())]

    def card(self, model: str, version: str = "") -> ModelCard:
        """What a model takes, in that version where it is known; the empty card for a model that the server does not have."""
        return self._cards.get((model, version)) or self._cards.get((model, ""), ModelCard())

    def knows(self, model: str, version: str) -> bool:
        """Whether it is known what that version of a model takes that is here. "": its default."""
        live = self.models.get(model)
        return live is None or version in ("", live.version) or (model, version) in self._cards

    def _rate(self) -> float:
        """Answers a second over the last seconds."""
        now = time.monotonic()
        if not self._samples:
            return 0.0
        then, answered = self._samples[0]
        return round((self.metrics.answered - answered) / max(now - then, WATCH_S), 1)

    # Following the backend.

    async def watch(self) -> None:
        """Follow the backend and its models for ever."""
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
            await self.refresh(MODELS_AGE_S if self.readiness.settled and not self.backend.look_soon else FRESH_S)
        except Exception:
            log.exception("the server's state cannot be read")

    async def refresh(self, max_age_s: float) -> None:
        """Have the backend look at what is there where that is older than `max_age_s`, and follow what it has seen."""
        async with self._lock:
            records = await asyncio.to_thread(self.rollout_records)
            answering = {name for name, traffic in self._traffic.items() if traffic.answered}
            await self.backend.look(max_age_s if records == self._rollout_records else 0)
            if self.backend.looks == self._followed:
                self.rollouts.follow(records)
                return
            self._followed = self.backend.looks
            for name in answering:
                self._traffic[name].answered = False
            ready, there, others = None, self.backend.models, self.backend.others
            cards = await asyncio.to_thread(self._read_cards, there, others) if self.backend.reachable else None
            self._rollout_records = records
            self.rollouts.follow(records)  # once it is known what their new archives take
            if cards is not None:
                stand_ins = self.rollouts.stand_ins(there)
                models = {**there, **{name: replace(new, name=name) for name, new in stand_ins.items()}}
                self._follow(models, cards | {(name, ""): cards[new.name, ""] for name, new in stand_ins.items()})
                ready = {name: model.ready_workers > 0 for name, model in models.items()}
            self.readiness.look(ready, answering)
            self.metrics.up.set(self.backend.reachable)

    def _read_cards(self, models: Mapping[str, LiveModel], others: Mapping[tuple[str, str], LiveModel]) -> Cards:
        """What the models take: not on the event loop."""
        cards = {of: self.backend.card(model) for of, model in others.items()}
        return cards | {(name, ""): self.backend.card(model) for name, model in models.items()}

    def _follow(self, models: dict[str, LiveModel], cards: Cards) -> None:
        """Have the traffic of these models, and nothing of those that are gone."""
        self.models, self._cards = models, cards
        for name, model in models.items():
            if name not in self._traffic:
                self._add_traffic(name, repeatable=True)
            self._traffic[name].fit(model)
            self._traffic[name].repeatable = self.options.hedge and cards[name, ""].hedge
        self._traffic = {name: traffic for name, traffic in self._traffic.items() if name in models or name == OTHER}
        self.metrics.keep(self._traffic)

    def _add_traffic(self, name: str, repeatable: bool) -> None:
        traffic = ModelTraffic(
            self.options.in_flight,
            self.options.queued,
            self.options.hedge and repeatable,
            self.backend.takes_turns,
            partial(self.backend.wait_s, name),
            partial(self.backend.waiting, name),
        )
        self._traffic[name] = traffic
        self.metrics.watch(name, traffic)

    async def close(self) -> None:
        """Close every connection."""
        self.backend.close()
        self.large_work.close()


def _settings(model: LiveModel) -> dict[str, Any]:
    keys = ("name", "version", "batch_size", "max_batch_delay", "profile", "engine", "precision")
    settings = {key: getattr(model, key) for key in keys}
    return {**settings, "workers": len(model.workers), "ready_workers": model.ready_workers}
