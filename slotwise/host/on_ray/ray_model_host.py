"""The management API's calls on models whose replicas are Ray's: Ray deploys them, and their queues are here."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise.backends.catalog import inspected_card
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.prints import FilePrints
from slotwise.backends.management.models import HostedModel, Observation
from slotwise.host.look_again import look_again
from slotwise.host.model_host import CALL_S
from slotwise.host.model_versions import ModelVersions
from slotwise.host.on_ray.placed_model import PlacedModel
from slotwise.server.ray.server import RayHost, what_runs

if TYPE_CHECKING:
    from slotwise.server.record import ServerRecord

T = TypeVar("T")
TELL_S = 1.0


class RayModelHost:
    """Every version as a deployment of Ray's and a queue of ours (ModelHost)."""

    def __init__(self, ray: RayHost, loaded: ModelVersions, record: ServerRecord) -> None:
        self.ray, self.loaded, self.record = ray, loaded, record
        self.loop = asyncio.get_running_loop()

    async def watch(self) -> None:
        """Tell replicas what there is to do, again and again."""
        await look_again(self._tell, TELL_S, "replicas")

    def _tell(self) -> None:
        for served in self.loaded.all():
            if isinstance(served, PlacedModel):
                served.tell_asked()

    def register(self, model: HostedModel, *, default: bool) -> None:
        """Deploy it; its replicas come once they have started."""
        settings = ModelSettings(
            name=model.name,
            version=model.version,
            archive=model.info.path,
            model_dir=self.record.state_dir / "models" / model.id,
            environ={},
            prints=FilePrints(self.record.state_dir / "logs" / "model_log.log"),
            batch_size=model.batch_size,
            max_batch_delay_s=model.max_batch_delay_ms / 1000,
            response_timeout_s=float(model.response_timeout_s),
            job_queue_size=model.profile.job_queue_size,
            linger=model.profile.linger,
            target_s=model.profile.latency_p99_ms / 1000,
            repeatable=model.info.model.get("hedge", True) is not False,
            histories=self.record.state_dir / "histories",
            card=inspected_card(model.info),
        )

        async def serve() -> None:
            served = PlacedModel(settings, partial(self.loaded.measured, model.name), runs=what_runs(model))
            self.loaded.add(served, default=default)
            served.scale(model.min_workers)

        self._run(serve())
        try:
            self.ray.register(model, default=default)
        except BaseException:
            self._remove(model)
            raise

    def unregister(self, model: HostedModel) -> None:
        """Serve it no longer, once what its replicas have in hand is answered."""
        self._remove(model)
        self.ray.unregister(model)

    def scale(self, model: HostedModel) -> None:
        """Have Ray start or end replicas."""
        self.ray.scale(model)

        async def scale() -> None:
            self.loaded.find(model.name, model.version).scale(model.min_workers)
            self.loaded.changed += 1

        self._run(scale())

    def set_default(self, model: HostedModel, before: HostedModel) -> None:
        """Send requests without a version to `model`."""
        self.ray.set_default(model, before)

        async def set_default() -> None:
            self.loaded.set_default(model.name, model.version)

        self._run(set_default())

    def describe(self, model: HostedModel) -> Observation:
        """What Ray says of its replicas; one is READY once it is connected here, too."""

        async def facts() -> dict[str, Mapping[str, Any]]:
            served = self.loaded.find(model.name, model.version)
            return {link.name: {**link.got, "version": model.version} for link in served.links if link.got}

        seen = self.ray.describe(model, self._run(facts()))

        async def mine() -> Observation:
            served = self.loaded.find(model.name, model.version)
            linked = {link.name for link in served.links if link.status == "READY"}
            served.failure = "" if linked else seen.failure
            workers = tuple(
                one if one.status != "READY" or one.id in linked else replace(one, status="STARTING") for one in seen.workers
            )
            queue = served.queue
            return replace(
                seen,
                workers=workers,
                waiting=len(queue.waiting),
                batch_cost=queue.dispatcher.described(),
                settings=_limits(model),
            )

        return self._run(mine())

    def close(self) -> None:
        """End every replica."""
        self._run(self.loaded.close())
        self.ray.close()

    def _remove(self, model: HostedModel) -> None:
        self._run(self.loaded.remove(model.name, model.version))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(CALL_S)


def _limits(model: HostedModel) -> dict[str, int]:
    """Between which numbers Ray chooses how many replicas there are; nothing where it does not."""
    profile = model.profile
    return {"minWorkers": max(1, profile.min_replicas), "maxWorkers": profile.max_replicas} if profile.max_replicas else {}
