"""A server behind: follow it, send it requests, and answer with what comes back.

`slotwise serve` and `slotwise apply` write a record of the server. When the record names another server, the next request
goes there; the old server answers what is in flight at it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from slotwise.backends.catalog import UNKNOWN, ModelCard, described_card, model_card
from slotwise.backends.exchange import SENDS, NotLoaded
from slotwise.backends.interface import ANOTHER_ARCHIVE, MAX_BODY_BYTES, BackendAnswer, BackendRequest, Refused, by_default
from slotwise.backends.metric_labels import OTHER
from slotwise.backends.remote.copy_metrics import CopyMetrics
from slotwise.backends.remote.race import ModelCopies, Race
from slotwise.backends.remote.server_view import ModelLoader, ServerView
from slotwise.backends.remote.upstream import ConnectionBroken, Upstream, target_of
from slotwise.client.inference import ONE_VERSION
from slotwise.errors import SlotwiseError
from slotwise.server.java import own_errors

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel
    from slotwise.server.lifecycle import ServerRecord

log = logging.getLogger("slotwise.gateway")

LOADING_S = 120.0  # what the server before it had is taken for being loaded so long after a switch, not for unknown


class RemoteBackend:
    """The server that a record names. drain_s: how long an old server may take with what is in flight at it.

    loader: loads models as SageMaker says, which alone knows which of them should be there.
    """

    streams = takes_turns = False

    def __init__(self, view: ServerView, drain_s: float, loader: ModelLoader | None = None) -> None:
        self.view, self.drain_s, self.loader = view, drain_s, loader
        self.models: Mapping[str, LiveModel] = {}
        self.others: Mapping[tuple[str, str], LiveModel] = {}
        self.reachable = self.look_soon = False
        self.max_body_bytes, self.looks = MAX_BODY_BYTES, 0
        self.upstream: Upstream | None = None
        self.registry = CollectorRegistry()
        self.copy_metrics = CopyMetrics(self.registry)
        self._copies: dict[str, ModelCopies] = {}
        self._cards: dict[tuple[str, str], tuple[str, ModelCard]] = {}  # and the archives' names, by model and version
        self._former: set[str] = set()  # those that the server before this one had, and this one has not had yet
        self._switched_at = self._looked_at = float("-inf")
        self._retired, self._closing = set[Upstream](), set[asyncio.Task[None]]()
        self._lock = asyncio.Lock()

    # For the hot path.

    async def answer(self, request: BackendRequest) -> BackendAnswer:
        """The server's answer, after as many copies as it takes. Raises Refused (422, 500, 502, 504)."""
        return await Race(
            request,
            self.copies(request.label),
            self.copy_metrics,
            lambda fresh: self._attempt(request, fresh),
            lambda max_age_s: self._live(request, max_age_s),
        ).run()

    def copies(self, label: str) -> ModelCopies:
        """What is known of the copies of one model's requests."""
        if label not in self._copies:
            self._copies[label] = ModelCopies()
        return self._copies[label]

    async def _live(self, request: BackendRequest, max_age_s: float) -> LiveModel | None:
        await self.look(max_age_s)
        return self.others.get((request.model, request.version)) or self.models.get(request.model)

    async def _attempt(self, request: BackendRequest, fresh: bool) -> BackendAnswer:
        """Send the request once. Raises ConnectionBroken, or Refused: 502 without a server, 504 without time."""
        upstream = self._server()
        self._check_version(request, upstream.record)
        target = target_of(request, upstream.record)
        by = request.answered_by = request.answered_by._replace(run=self._runs(request, upstream))
        try:
            with upstream.busy():  # a swap waits for it, also while its token is renewed
                answer = await _sent_with_token(upstream, request, target, fresh)
            request.answered_by = by  # a second copy may have gone to another server meanwhile
        except TimeoutError:
            raise Refused(504, "the model server did not answer before the deadline") from None
        except OSError as error:
            self.look_soon = True
            raise ConnectionBroken(str(error) or type(error).__name__) from error
        except ValueError as error:  # of the head: nothing was sent
            raise Refused(400, str(error)) from None
        except SlotwiseError as error:
            log.warning("%s %s", request.identity, error)
            return BackendAnswer(503, [], b"the model server's token could not be renewed")  # the race tries again
        if target != request.target and own_errors.no_such_version(answer):
            raise Refused(503, ANOTHER_ARCHIVE, retry_after_s=1)
        if answer.missing and upstream.record.kind == "triton" and request.model in self.models:
            self.look_soon = True  # it may have been unregistered just now
            raise NotLoaded
        if answer.missing and self._still_loading(request.model):
            return BackendAnswer(503, [], b"the model server has just been started: the model is not loaded yet")
        return answer

    def _server(self) -> Upstream:
        if self.upstream is None:
            raise Refused(502, "no model server is running")
        return self.upstream

    def _check_version(self, request: BackendRequest, record: ServerRecord) -> None:
        """Raise Refused where a server that has one version of a model, and is not told which, has another: 404, or 503."""
        live, read_for = self.models.get(request.model), request.read_for
        asked = request.version or (read_for.version if read_for else "")
        if record.kind not in ONE_VERSION or live is None or "" in (asked, live.version) or asked == live.version:
            return
        if request.version:
            raise Refused(404, f"there is no model {request.model} {asked}", logged="there is no such version")
        raise Refused(503, ANOTHER_ARCHIVE, retry_after_s=1)

    def _runs(self, request: BackendRequest, upstream: Upstream) -> str:
        """What tells the archive that answers there from another of its name and version: its content, or the server's run."""
        live = self.others.get((request.model, request.version)) or self.models.get(request.model)
        contents = live.contents if live else set()
        return min(contents) if len(contents) == 1 else upstream.record.run_id

    def _still_loading(self, model: str) -> bool:
        """Whether the server has only just taken the place of one that had this model, and has not got it yet."""
        return model in self._former and time.monotonic() - self._switched_at < LOADING_S

    # Following the server.

    def not_run(self, request: BackendRequest) -> None:
        """The server has no way to be told."""

    def wait_s(self, model: str, count: int) -> float:
        """The server does not say."""
        return 0.0

    def waiting(self, model: str) -> int:
        """Nor does it say this."""
        return 0

    async def look(self, max_age_s: float) -> None:
        """Look at the server's record; ask the server for its models where the list is older than `max_age_s`."""
        async with self._lock:
            record = await asyncio.to_thread(self.view.find)
            if record is not None and (self.upstream is None or record.run_id != self.upstream.record.run_id):
                await self._switch(record)
                return
            if record is not None and self.upstream is not None:
                self.upstream.record = record  # scaled: the same run, with other settings
            if time.monotonic() - self._looked_at >= max_age_s:
                await self._read_models(record)

    async def _switch(self, record: ServerRecord) -> None:
        """Send every new request to the server of `record`; close the old one's connections once they are idle."""
        new = Upstream(record, self.view.auth, await asyncio.to_thread(self.view.max_answer_bytes, record))
        old = self.upstream
        try:
            await new.renew_token(new.token)
        except SlotwiseError as error:
            log.warning("no token for the server: %s", error)
        if old is not None:
            self._former, self._switched_at = self._former | self.models.keys(), time.monotonic()
        self.max_body_bytes = await asyncio.to_thread(self.view.max_body_bytes, record)
        await self._read_models(record)
        self.upstream = new  # at once: what its models are is asked for together with it
        log.info("now in front of %s (profile %s) at %s", record.kind, record.profile, record.inference_url)
        if old is not None:
            self.copy_metrics.swaps.inc()
            self._retired.add(old)
            task = asyncio.create_task(self._retire(old))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _retire(self, old: Upstream) -> None:
        if not await old.drained(self.drain_s):
            log.warning("%d requests were still in flight at the old server", old.in_flight)
        self._retired.discard(old)
        old.close()

    async def _read_models(self, record: ServerRecord | None) -> None:
        self.look_soon = False
        try:
            if record is None:
                raise SlotwiseError("no server is running")
            versions = await asyncio.to_thread(self.view.models, record)
        except (SlotwiseError, OSError) as error:
            if self.reachable:
                log.warning("the model server does not answer: %s", error)
            self.reachable = False
        else:
            self.reachable, (self.models, self.others) = True, by_default(versions)
            self._former -= self.models.keys()
            for name, model in self.models.items():
                self.copies(name).worker_ends.follow(worker.pid for worker in model.workers)
            self._forget_others()
        self._looked_at = time.monotonic()
        self.looks += 1

    def _forget_others(self) -> None:
        """Keep nothing of models that are gone, once nothing of theirs is on its way."""
        kept = {OTHER, *self.models, *(name for name, copies in self._copies.items() if copies.permits.in_use)}
        self._copies = {name: copies for name, copies in self._copies.items() if name in kept}
        self.copy_metrics.keep(kept)
        there = {(name, model.version) for name, model in self.models.items()} | self.others.keys()
        self._cards = {of: card for of, card in list(self._cards.items()) if of in there}  # a thread adds to it

    # For the page, the API and the metrics.

    def card(self, model: LiveModel) -> ModelCard:
        """See Backend. Its workers say what they run. While its file is gone or another one, what was read last holds."""
        store = self.upstream.record.model_store if self.upstream else Path()
        file, runs = store / Path(model.archive).name, model.contents
        of = (model.name, model.version)
        card, (archive, kept) = model_card(file, runs), self._cards.get(of, ("", None))
        if card is None and kept is not None and archive == model.archive and (not runs or kept.content in runs):
            return kept
        if card is None:
            return UNKNOWN if file.is_file() else described_card(model.name)
        self._cards[of] = model.archive, card
        return card

    def about(self) -> dict[str, Any] | None:
        """The server, for the page's status strip."""
        if self.upstream is None:
            return None
        record = self.upstream.record
        return {"kind": record.kind, "profile": record.profile, "pid": record.pid, "reachable": self.reachable}

    @property
    def leaving(self) -> int:
        """What is in flight at servers that no new requests go to."""
        return sum(old.in_flight for old in self._retired)

    async def metrics(self) -> BackendAnswer | None:
        """The server's own Prometheus metrics; MMS has none. Raises OSError."""
        return None if self.upstream is None or self.upstream.record.kind == "mms" else await self.upstream.metrics()

    async def load(self, name: str, url: str) -> None:
        """Load a model as the loader does. Raises SlotwiseError, or Refused (503) where no server is running."""
        loader, record = self._loading()
        await asyncio.to_thread(loader.load, record, name, url)

    async def unload(self, name: str) -> None:
        """Unload it. Raises SlotwiseError, or Refused (503) where no server is running."""
        loader, record = self._loading()
        await asyncio.to_thread(loader.unload, record, name)

    def _loading(self) -> tuple[ModelLoader, ServerRecord]:
        if self.upstream is None or self.loader is None:
            raise Refused(503, "no model server is running")
        return self.loader, self.upstream.record

    def close(self) -> None:
        """Close every connection."""
        for task in list(self._closing):
            task.cancel()
        for upstream in [*self._retired, *([self.upstream] if self.upstream else [])]:
            upstream.close()


async def _sent_with_token(upstream: Upstream, request: BackendRequest, target: str, fresh: bool) -> BackendAnswer:
    """The server's answer; where it refuses its token, that is renewed. Raises OSError, SlotwiseError or Refused (504)."""
    if request.left_s <= 0:
        raise Refused(504, "the deadline has passed")
    for _ in range(SENDS):  # a renewed token may be worthless by then, because somebody else has renewed it
        token = upstream.token
        answer = await upstream.send(target, request.headers, request.body, request.left_s, fresh)
        if own_errors.token_refused(answer):
            async with asyncio.timeout(request.left_s):
                await upstream.renew_token(token)
            if upstream.token == token:  # else it is tried with the new one, which another request may have got
                break
        elif not request.dated_anew(answer):
            break
    if own_errors.wrong_token(answer):
        return BackendAnswer(503, [], b"the model server refuses its own token")  # the race tries again after a pause
    if own_errors.form_unreadable(answer):
        return BackendAnswer(400, [], b"the form cannot be read: a field has no name, or it is cut off")
    return answer
