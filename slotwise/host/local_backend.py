"""What answers requests in the host's own process: the queues of its models. One for each front end that is open."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from slotwise.backends.catalog import UNKNOWN, ModelCard
from slotwise.backends.exchange import SENDS, AnsweredBy
from slotwise.backends.interface import ANOTHER_ARCHIVE, BackendAnswer, BackendRequest, Refused, by_default
from slotwise.errors import SlotwiseError
from slotwise.host.model_versions import ModelVersions

if TYPE_CHECKING:
    from slotwise.backends.local.served_model import ServedModel
    from slotwise.client.live_model import LiveModel
    from slotwise.server.record import ServerRecord


class LocalBackend:
    """The models that are loaded here. describe(): their versions as they are now, each one's default first, in a thread."""

    streams = takes_turns = True

    def __init__(
        self,
        loaded: ModelVersions,
        record: ServerRecord,
        max_body_bytes: int,
        describe: Callable[[], Sequence[LiveModel]],
    ) -> None:
        self.loaded, self.record, self.max_body_bytes, self.describe = loaded, record, max_body_bytes, describe
        self.models: Mapping[str, LiveModel] = {}
        self.others: Mapping[tuple[str, str], LiveModel] = {}
        self.reachable, self.look_soon = True, False
        self.looks = 0
        self.registry = CollectorRegistry()
        self.registry.register(loaded)
        self._looked_at, self._seen = float("-inf"), -1

    async def answer(self, request: BackendRequest) -> BackendAnswer:
        """A worker's answer. Raises Refused."""
        served = self._asked(request)
        self.loaded.not_run(request, but=served)
        request.repeatable = served.settings.repeatable  # whatever the front says: it hedges nothing here
        request.answered_by = AnsweredBy(request.model, served.settings.version, served.settings.content)
        for _ in range(SENDS):
            given = await served.answer(request)
            answer = BackendAnswer(given.status, given.headers, given.body, from_worker=True)
            if request.state_of or not request.dated_anew(answer):
                break
        return answer

    def _asked(self, request: BackendRequest) -> ServedModel:
        """The version that is to answer. Raises Refused: 404, or 503 where what is there takes something else."""
        served, read_for = self.loaded.find(request.model, request.version), request.read_for
        if read_for is None:
            return served
        candidates = [served]
        if not request.version and served.settings.version != read_for.version:
            with contextlib.suppress(Refused):
                candidates.insert(0, self.loaded.find(request.model, read_for.version))
        for one in candidates:
            if read_for.fits(one.settings.card):
                return one
        raise Refused(503, ANOTHER_ARCHIVE, retry_after_s=1)

    def not_run(self, request: BackendRequest) -> None:
        """See Backend."""
        self.loaded.not_run(request)

    def wait_s(self, model: str, count: int) -> float:
        """By what the batches of its default version have cost."""
        served = next(iter(self.loaded.by_name.get(model, {}).values()), None)
        return served.queue.wait_s(count) if served else 0.0

    def waiting(self, model: str) -> int:
        """In the queues of all its versions, also those that came through another front."""
        versions = self.loaded.by_name.get(model, {}).values()
        return sum(one.open for served in versions for one in served.queue.waiting)

    async def look(self, max_age_s: float) -> None:
        """Look at the models and their workers, where the last look is older than that or models came or went."""
        if time.monotonic() - self._looked_at < max_age_s and self._seen == self.loaded.changed and not self.look_soon:
            return
        self.look_soon, self._seen = False, self.loaded.changed
        self.models, self.others = by_default(await asyncio.to_thread(self.describe))
        self._looked_at = time.monotonic()
        self.looks += 1

    def card(self, model: LiveModel) -> ModelCard:
        """See Backend: as it was registered, whatever is in the model store by now."""
        with contextlib.suppress(Refused):
            card: ModelCard = self.loaded.find(model.name, model.version).settings.card
            return card
        return UNKNOWN  # it has gone meanwhile

    def about(self) -> dict[str, Any]:
        """This host, for the page's status strip."""
        record = self.record
        return {"kind": record.kind, "profile": record.profile, "pid": record.pid, "reachable": True}

    @property
    def leaving(self) -> int:
        """No request is on its way anywhere else."""
        return 0

    async def metrics(self) -> BackendAnswer:
        """The host's own Prometheus metrics."""
        return BackendAnswer(200, [(b"content-type", CONTENT_TYPE_LATEST.encode())], generate_latest(self.registry))

    async def load(self, name: str, url: str) -> None:
        """Models come by the management API only."""
        raise SlotwiseError("this host loads models by its management API", "`slotwise register`")

    async def unload(self, name: str) -> None:
        """As `load`."""
        raise SlotwiseError("this host unloads models by its management API", "`slotwise unregister`")

    def close(self) -> None:
        """The models stay: others may ask them."""
