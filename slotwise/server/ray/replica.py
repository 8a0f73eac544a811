"""What runs in Ray's replicas: one archive's own worker in a child process.

Its batches come from the front, through the replica's link (front_link.py). Where no front of ours is there, as in a
RayService, Ray's proxy asks, and a queue here gathers batches.

A slot's status, headers and body go out as its own response. Where the child has died, its batch is answered "Worker died.", as
TorchServe says it, and the replica ends: Ray starts another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import ray.util.metrics
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from slotwise.archive.local_model import LocalAnswer, LocalModel
from slotwise.errors import SlotwiseError
from slotwise.server.processes import worker_report
from slotwise.server.ray.archives import NAMESPACE, fetch
from slotwise.server.ray.batch_queue import BatchQueue
from slotwise.server.ray.front_link import FrontAddress, FrontLink
from slotwise.server.ray.http import PREFIX, body_within, died, refusal, response
from slotwise.server.ray.scaling import ASKED
from slotwise.worker.answer import Answer, GivenAnswer
from slotwise.worker.hosts.local import Answered
from slotwise.worker.request import Request as FramedRequest

logger = logging.getLogger("ray.serve")  # its handlers write the replica's log
HIDDEN = ("authorization",)  # the server's token is no business of a handler
END_AFTER_S = 0.3  # enough for answers that are on their way
HELD_S = 10 * END_AFTER_S
ENGINE_END_S = 0.1
ASK_S = 30.0
LocalRequest = tuple[bytes, Mapping[str, str], Mapping[str, str]]


@dataclass(frozen=True)
class ReplicaSettings:
    """What a replica has to know. archive: a file on its node, or "" where `digest` is fetched from the actor `keeper`.

    runs: what the front asks for (front_link).
    """

    name: str
    version: str
    batch_size: int
    max_batch_delay_ms: float
    response_timeout_s: float
    max_request_bytes: int
    archive: str = ""
    digest: str = ""
    keeper: str = ""
    runs: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The deployment's name: as HostedModel.id is."""
        return f"{self.name}@{self.version}"


@dataclass
class LinkedBatch:
    """Answers for the front (Answered). Times are Ray's metrics' business."""

    answers: list[Answer]
    total_ms: float = 0.0
    decode_ms: float = 0.0
    inference_ms: float = 0.0


class Replica:
    """Serves one version of a model."""

    def __init__(self, settings: Mapping[str, Any], others: Sequence[Any] = ()) -> None:
        """others: deployments of the same application, so that they belong to it; they are found by their names."""
        self.settings = ReplicaSettings(**settings)
        self.ending = False
        self.loop = asyncio.get_event_loop()
        self.state = tempfile.TemporaryDirectory(prefix="slotwise-replica-")
        self.metrics = ReplicaMetrics(self.settings.name)
        try:
            self.model = self._load()
        except SlotwiseError as error:
            self._tell("fail", self.settings.id, f"{error.message} ({error.hint})" if error.hint else error.message)
            raise
        self.batches = BatchQueue(self._batch, self.settings.batch_size, self.settings.max_batch_delay_ms / 1000)
        name, facts = serve.get_replica_context().replica_id.unique_id, self._facts()
        self._tell("report", name, facts)
        about = {"model": self.settings.name, "version": self.settings.version, "runs": self.settings.runs, "replica": name}
        self.link = FrontLink(self._front, about, facts, self) if self.settings.keeper else None

    def check_health(self) -> None:
        """Raise where the engine is dead; Ray asks every health_check_period_s and replaces the replica then."""
        if not self.model.alive:
            self._end()
            raise RuntimeError("Worker died.")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """How many requests it has, for Ray's autoscaler (scaling.py)."""
        return {ASKED: self.link.asked if self.link else 0.0}

    # What the front asks, through its link, in threads.

    def answer_batch(self, requests: Sequence[FramedRequest]) -> Answered:
        """Exactly one answer a request, in order. Raises SlotwiseError where the child has died; the replica ends then."""
        try:
            answers = self._in_child([(one.body, one.headers, one.query) for one in requests])
            return LinkedBatch([GivenAnswer(one.status, one.content_type, one.body, one.headers) for one in answers])
        except Exception as error:
            if not isinstance(error, SlotwiseError):
                logger.exception("a batch failed outside its worker, which is ended")
            self.alone()
            raise SlotwiseError(f"the worker has died: {error}") from error

    def alone(self) -> None:
        """The front does not wait for what runs: end it, and this replica."""
        self.model.child.kill()
        self.loop.call_soon_threadsafe(self._end)

    @property
    def gone(self) -> bool:
        """Whether its child is."""
        return self.ending or not self.model.alive

    def _front(self) -> FrontAddress | None:
        try:
            found: FrontAddress | None = ray.get(self._keeper().front_address.remote(), timeout=ASK_S)
        except (ValueError, ray.exceptions.RayError):
            return None
        return found

    def _keeper(self) -> Any:
        return ray.get_actor(self.settings.keeper, namespace=NAMESPACE)

    # What Ray's proxy asks.

    async def __call__(self, request: Request) -> Response:
        """Answer one HTTP request to /predictions/NAME[/VERSION]."""
        body = await body_within(request, self.settings.max_request_bytes)
        if body is None:
            return refusal(413, "RequestEntityTooLargeException", "the request is too large")
        headers = {name: value for name, value in request.headers.items() if name not in HIDDEN}
        version = request.url.path.removeprefix(PREFIX + self.settings.name).strip("/")
        if version not in ("", self.settings.version):
            message = f"Model version: {version} does not exist for model: {self.settings.name}"
            return refusal(404, "ModelVersionNotFoundException", message)
        return response(await self.batches.answer((body, headers, dict(request.query_params))))

    async def _batch(self, requests: list[LocalRequest]) -> list[LocalAnswer]:
        """Exactly one answer a request, in order; the event loop goes on meanwhile."""
        if self.ending:  # these were not in its hands when it died: Ray answers them once this process is gone
            await asyncio.sleep(HELD_S)
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._in_child, requests), self.settings.response_timeout_s)
        except Exception as error:  # an exception would be answered by Ray, in words of its own
            if not isinstance(error, SlotwiseError | TimeoutError):
                logger.exception("a batch failed outside its worker, which is ended")
            self.model.child.kill()
            self._end()
            return [died()] * len(requests)

    def _in_child(self, requests: list[LocalRequest]) -> list[LocalAnswer]:
        answers = self.model.answer(requests)
        if any(answer.status == 503 for answer in answers):  # its engine may be dead: then it ends now
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.model.child.wait(ENGINE_END_S)
        if not self.model.alive:
            self.loop.call_soon_threadsafe(self._end)
        return answers

    def _load(self) -> LocalModel:
        environ = {**self.settings.environ, "SLOTWISE_STATE": self.state.name}
        options: dict[str, Any] = {"batch_size": self.settings.batch_size, "environ": environ, "measured": self.metrics.record}
        if self.settings.archive:
            return LocalModel(Path(self.settings.archive), **options)
        with tempfile.TemporaryDirectory(prefix="slotwise-archive-") as folder:
            archive = fetch(self.settings.keeper, self.settings.digest, Path(folder) / f"{self.settings.name}.mar")
            return LocalModel(archive, **options)

    def _facts(self) -> dict[str, Any]:
        """What the archive's worker reports of itself (slotwise.worker.reports.telemetry), and where it runs."""
        pid = self.model.child.pid
        report = worker_report(Path(self.state.name), pid)
        return {**self.model.started, "batch_size": self.settings.batch_size, **report, "pid": pid}

    def _end(self) -> None:
        """End this process once its answers are on their way: Ray sends nothing more here, and starts another."""
        if not self.ending:
            self.ending = True
            self.loop.call_later(END_AFTER_S, self._exit)

    def _exit(self) -> None:
        with contextlib.suppress(Exception):
            self.__del__()
        os._exit(1)

    def __del__(self) -> None:
        """Leave nothing behind; Serve calls this when the replica goes in order."""
        if (link := getattr(self, "link", None)) is not None and not self.ending:
            link.leave(self.settings.response_timeout_s)
        if hasattr(self, "model"):
            self.model.close()
        if hasattr(self, "state"):
            self.state.cleanup()

    def _tell(self, what: str, *about: Any) -> None:
        """Let the archives' actor know; a RayService has none."""
        if self.settings.keeper:
            with contextlib.suppress(ValueError, ray.exceptions.RayError):
                ray.get(getattr(self._keeper(), what).remote(*about))


class ReplicaMetrics:
    """A worker's numbers as Ray's metrics, under the names that they have on TorchServe (Ray puts ray_ before them)."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.known: dict[str, Any] = {}

    def record(self, name: str, value: float, unit: str, code: int | None) -> None:
        """Record one number: a count where it has no unit, else what it is now. A name stays what it was first."""
        kind: Any = ray.util.metrics.Gauge if unit else ray.util.metrics.Counter
        if name not in self.known:
            self.known[name] = kind(name, description=unit or "count", tag_keys=("ModelName", "Code"))
        if not isinstance(self.known[name], kind):
            return
        tags = {"ModelName": self.model, "Code": "" if code is None else str(code)}
        if unit:
            self.known[name].set(value, tags=tags)
        elif value > 0:
            self.known[name].inc(value, tags=tags)
