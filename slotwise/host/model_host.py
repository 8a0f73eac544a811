"""The management API's calls on the models of this host. They come from threads; what changes models runs on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise import log_format
from slotwise.archive.guarding.foreign import TERMS, need_worker
from slotwise.archive.inspection import unpacked
from slotwise.backends.catalog import inspected_card
from slotwise.backends.local.gpus import Gpus, gpus_here
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.prints import FilePrints, LinePrints, Prints
from slotwise.backends.local.served_model import ServedModel
from slotwise.backends.local.worker_link import Measured
from slotwise.backends.management.models import HostedModel, HostedWorker, Observation
from slotwise.host.idle_models import IdleModels
from slotwise.host.load_watch import LoadWatch
from slotwise.host.model_versions import ModelVersions
from slotwise.host.workers_by_load import WorkersByLoad
from slotwise.profiles.memory import resident_bytes
from slotwise.server.processes import started_at, worker_report
from slotwise.worker.environment.cores import available_cores
from slotwise.worker.environment.settings import json_object
from slotwise.worker.guard.stand_in import REGISTERED_AS

if TYPE_CHECKING:
    from slotwise.server.record import ServerRecord

T = TypeVar("T")
HOST = "hosts/local.py"  # an archive whose worker has it answers without a server
CALL_S = 60.0


class OwnHost:
    """Models as queues and workers of this process (ModelHost). gpus: so many do workers go round, where a model wants them."""

    def __init__(
        self, loaded: ModelVersions, record: ServerRecord, gpus: int | None = None, *, models_memory_bytes: int = 0
    ) -> None:
        self.loaded, self.record = loaded, record
        self.idle = IdleModels(loaded.all, models_memory_bytes)
        self.load = LoadWatch(loaded, self.idle.free_bytes, available_cores())
        self.gpus = Gpus.visible(gpus_here() if gpus is None else gpus, os.environ)
        self.loop = asyncio.get_running_loop()
        self.folder, self.logs = record.state_dir / "models", record.state_dir / "logs"
        shutil.rmtree(self.folder, ignore_errors=True)  # of a host that died
        for folder in (self.folder, self.logs):
            folder.mkdir(exist_ok=True)
        self.environ: Mapping[str, str] = os.environ
        self.prints: Prints = _prints(self.logs / "model_log.log")

    def register(self, model: HostedModel, *, default: bool) -> None:
        """Unpack the archive and start its workers."""
        need_worker(model.info, "this host", HOST)
        card = inspected_card(model.info)
        shutil.rmtree(self._model_dir(model), ignore_errors=True)
        model_dir = unpacked(model.info, self._model_dir(model))
        settings = ModelSettings(
            name=model.name,
            version=model.version,
            archive=model.info.path,
            model_dir=model_dir,
            environ=self._environ(model),
            prints=self.prints,
            batch_size=model.batch_size,
            max_batch_delay_s=model.max_batch_delay_ms / 1000,
            response_timeout_s=float(model.response_timeout_s),
            start_timeout_s=float(model.startup_timeout_s),
            job_queue_size=model.profile.job_queue_size,
            linger=model.profile.linger,
            target_s=model.profile.latency_p99_ms / 1000,
            max_memory_bytes=model.profile.max_memory_mb << 20,
            idle_timeout_s=model.profile.idle_timeout_s,
            refuses_asleep=model.profile.when_asleep == "refuse",
            gpus=self.gpus_of(model) if model.profile.device == "cuda" else None,
            repeatable=_repeatable(model_dir),
            pieces=asked_once_for(model_dir) in ("pieces", "steps"),
            **self.wishes(model),
            name_worker=partial(self.worker_name, model),
            histories=self.record.state_dir / "histories",
            card=card,
        )

        async def serve() -> None:
            served = self.served(settings, partial(self.loaded.measured, model.name))
            served.asked_asleep = self.idle.asked
            self.loaded.add(served, default=default)
            served.scale(model.min_workers)
            if model.profile.workers_by_load != "off" and not settings.sequences:
                self.load.add(served, self._chooser(model))

        self._run(serve())

    def served(self, settings: ModelSettings, measured: Measured) -> ServedModel:
        """One version of a model, not served yet."""
        return ServedModel(settings, measured)

    def wishes(self, model: HostedModel) -> dict[str, Any]:
        """Further settings that its archive asks for."""
        return {}

    def gpus_of(self, model: HostedModel) -> Gpus:
        """The GPUs that its workers go round."""
        return self.gpus

    def worker_name(self, model: HostedModel) -> str:
        """A name for a new worker of this model; "" for its own."""
        return ""

    def unregister(self, model: HostedModel) -> None:
        """Serve it no longer, once what its workers have in hand is answered."""
        self._run(self.loaded.remove(model.name, model.version), self.loaded.patience_s)
        shutil.rmtree(self._model_dir(model), ignore_errors=True)

    def scale(self, model: HostedModel) -> None:
        """Give it its min_workers; where they follow its load, as many as now, up to its max_workers from now on."""

        async def scale() -> None:
            served, workers = self.loaded.find(model.name, model.version), model.min_workers
            if chooser := self.loaded.by_load.get(served):
                chooser.limit(model.min_workers, model.max_workers)
                if not chooser.advise:
                    workers = min(max(served.wanted, model.min_workers), model.max_workers)
            served.scale(workers)
            self.loaded.changed += 1

        self._run(scale())

    def set_default(self, model: HostedModel, before: HostedModel) -> None:
        """Send requests without a version to `model`."""

        async def set_default() -> None:
            self.loaded.set_default(model.name, model.version)

        self._run(set_default())

    def describe(self, model: HostedModel) -> Observation:
        """Its workers now."""

        async def workers() -> tuple[list[Any], str, int, dict[str, Any]]:
            served = self.loaded.find(model.name, model.version)
            said = served.queue.dispatcher.described()
            if chooser := self.loaded.by_load.get(served):
                said["workers"] = chooser.described(self.loop.time())
            return served.workers(), served.failure, len(served.queue.waiting), said

        seen, failure, waiting, cost = self._run(workers())
        hosted = []
        for worker in seen:
            got = worker_report(self.record.state_dir, worker.pid) if worker.pid else {}
            memory = resident_bytes(worker.pid) if worker.pid else 0
            gpu = got.get("device") == "cuda"
            hosted.append(
                HostedWorker(
                    id=worker.id,
                    pid=worker.pid,
                    status=worker.status,
                    got=got,
                    memory_bytes=memory,
                    gpu=gpu,
                    started_at=started_at(worker.pid) if worker.pid else 0.0,
                )
            )
        return Observation(tuple(hosted), failure, waiting, cost)

    def close(self) -> None:
        """End every worker."""
        self._run(self.loaded.close(), self.loaded.patience_s)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, call: Coroutine[Any, Any, T], patience_s: float = 0.0) -> T:
        """What it returns. patience_s: for which it may wait by itself."""
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(patience_s + CALL_S)

    def _model_dir(self, model: HostedModel) -> Path:
        return self.folder / f"{model.id}"

    def _environ(self, model: HostedModel) -> dict[str, str]:
        shares = {"SLOTWISE_SHARES": json.dumps(dict(self.record.shares))}
        registered, overrides = model.as_registered, [*self.record.overrides]
        if model.profile.workers_by_load == "auto":  # each has its share of the cores among as many as there may be
            registered = registered.but({"initial_workers": self._most(model)}, f"the registration of {model.name}")
            overrides.append("initial_workers")
        return {**self.environ, **shares, REGISTERED_AS: model.name, **registered.environment(overrides)}

    def _most(self, model: HostedModel) -> int:
        """How many workers it may have by its load."""
        return model.as_registered.most_workers(available_cores())

    def _chooser(self, model: HostedModel) -> WorkersByLoad:
        profile = model.profile
        share = 0 if profile.max_workers else self.record.shares.get(model.info.name, 0)
        advise = profile.workers_by_load == "advise"
        return WorkersByLoad(profile.min_workers, self._most(model), share=share, advise=advise, name=model.id)


def _prints(path: Path) -> Prints:
    """Where workers' output goes: as it is, or each line labelled with its model and worker where logs are JSON."""
    if log_format.from_environment() == "text":
        return FilePrints(path)

    def take(worker: str, lines: list[str]) -> None:
        with contextlib.suppress(OSError), path.open("a", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{log_format.printed(worker.rpartition('_')[0], worker, line)}\n" for line in lines)

    return LinePrints(take)


def _repeatable(model_dir: Path) -> bool:
    """Whether a request may be sent a second time: `hedge` in the model's description."""
    return json_object(model_dir / "slotwise.json").get("model", {}).get("hedge", True) is not False


def asked_once_for(model_dir: Path) -> str:
    """Why the handler behind a guard is asked once for each request; "" where it may be asked again, or is no guarded one."""
    return str(json_object(model_dir / TERMS).get("once", ""))
