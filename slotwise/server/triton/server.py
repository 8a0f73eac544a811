"""A Triton under Slotwise's management API: the supervising process of `slotwise serve --server triton`.

A model is a folder of the state's `repository/`, and its workers are instances of that model. Triton serves one version of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.archive.triton.repository import export, write_config
from slotwise.backends.management.bearer import Tokens
from slotwise.backends.management.models import ApiError, HostedModel, HostedWorker, ModelTable, Observation
from slotwise.errors import SlotwiseError
from slotwise.profiles.memory import resident_bytes
from slotwise.server import default_versions, hidden_arguments, supervisor
from slotwise.server.processes import carries, worker_report
from slotwise.server.triton import process as triton_process
from slotwise.server.triton.api import TritonApi

if TYPE_CHECKING:
    from slotwise.profiles.profile import Profile
    from slotwise.server.record import ServerRecord

logger = logging.getLogger(__name__)

UNLOAD_S = 150.0
AGAIN_S = 30.0  # after a load that failed, of a model that has served
LOOK_S = 1.0  # how often Triton and its processes are looked after


class Triton:
    """A running tritonserver, as the management API needs it (ModelHost)."""

    def __init__(self, record: ServerRecord, profile: Profile, tokens: Mapping[str, str]) -> None:
        self.record = record
        self.repository, self.instances = record.state_dir / "repository", record.state_dir / "instances"
        for folder in (self.repository, self.instances):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        self.models: dict[str, HostedModel] = {}
        self.loading: dict[str, threading.Thread] = {}
        self.failures: dict[str, str] = {}
        self.serving: dict[str, HostedModel] = {}  # as each was loaded last
        self.lost: dict[str, float] = {}  # what is to come back, and not before when
        self.replaced: dict[str, set[str]] = {}  # files of instances that are to go, in whose place there are others
        self.change = threading.RLock()
        self.closing = threading.Event()
        self.process = triton_process.launch(record, profile, tokens, self.repository)
        self.api = TritonApi(record, tokens["management"])
        try:
            self.api.wait_until_live(self._why_ended)
            if not hidden_arguments.hide(self.process.pid, list(tokens.values())):
                logger.warning("the tokens may be read in the list of processes: the system lets nobody hide them")
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._look_after, daemon=True).start()

    def register(self, model: HostedModel, *, default: bool) -> None:
        """Write the model into the repository, and have Triton load it."""
        if not default:
            message = f"Triton serves one version of a model: unregister {model.name}, or register this one under another name"
            raise ApiError(409, "ConflictStatusException", message)
        with self.change:
            export(model.info, model.as_registered, self.repository, **self._options(model))
            self.models[model.name] = model
            self._load(model)

    def unregister(self, model: HostedModel) -> None:
        """Unload the model; returns when what it had in hand is answered."""
        with self.change:
            self._join(model.name)
            self.models.pop(model.name, None)
            self.failures.pop(model.name, None)
            self._unload(model.name)
            shutil.rmtree(self.repository / model.name, ignore_errors=True)

    def scale(self, model: HostedModel) -> None:
        """Load the model with another number of instances; the old ones answer until the new ones are ready."""
        with self.change:
            self._join(model.name)
            self.models[model.name] = model
            if not model.min_workers:
                self._unload(model.name)
                return
            self._write_config(model)
            self._load(model)

    def set_default(self, model: HostedModel, before: HostedModel) -> None:
        """There is one version, which is the default."""
        raise ApiError(400, "BadRequestException", "Triton serves one version of a model")

    def describe(self, model: HostedModel) -> Observation:
        """The processes of the model's instances."""
        workers = self._workers(model.name)
        loading = self.loading.get(model.name)
        if loading is not None and loading.is_alive() and model.name not in self.serving:
            workers = [HostedWorker(id=worker.id, pid=0, status="STARTING", got={}) for worker in workers]
        missing = max(0, model.min_workers - len(workers))
        workers += [HostedWorker(id=f"{model.name}_{i}", pid=0, status="STARTING", got={}) for i in range(missing)]
        return Observation(tuple(workers), self.failures.get(model.name, ""))

    def close(self) -> None:
        """End Triton, and all that it started."""
        self.closing.set()
        self.api.close()
        triton_process.stop(self.process)
        triton_process.remove_shared_memory(self.record.run_id)

    def _write_config(self, model: HostedModel) -> None:
        write_config(model.info, model.as_registered, self.repository / model.name, **self._options(model))

    def _options(self, model: HostedModel) -> dict[str, Any]:
        gpu = model.profile.device == "cuda" and triton_process.has_gpu()
        return {"name": model.name, "gpu": gpu, "overrides": tuple(self.record.overrides)}

    def _load(self, model: HostedModel, after: Callable[[], None] = lambda: None) -> None:
        """Have Triton load the model, in a thread. What goes wrong stands in `failures`; what served until then goes on."""

        def load() -> None:
            try:
                self.api.load(model.name)
                after()
                self.serving[model.name] = model
                self.lost.pop(model.name, None)
            except SlotwiseError as error:
                logger.error("%s: %s", model.name, error.message)
                self.failures[model.name] = error.message
                if model.name in self.lost:
                    self.lost[model.name] = time.monotonic() + AGAIN_S
                elif served := self.serving.get(model.name):
                    self._write_config(served)

        self.failures.pop(model.name, None)
        self.loading[model.name] = threading.Thread(target=load, daemon=True)
        self.loading[model.name].start()

    def _join(self, name: str) -> None:
        if name in self.loading:
            self.loading.pop(name).join()
        self.lost.pop(name, None)

    def _unload(self, name: str) -> None:
        self.serving.pop(name, None)
        self.api.unload(name)
        deadline = time.monotonic() + UNLOAD_S
        while time.monotonic() < deadline:
            if name not in self.api.busy() and not self._workers(name):
                return
            time.sleep(0.1)
        logger.error("%s was not unloaded within %.0f s", name, UNLOAD_S)

    def _workers(self, name: str) -> list[HostedWorker]:
        """The instances of a model whose process lives. A file NAME.PID of that process holds the worker's pid, or 0."""
        workers = []
        for file in self._instance_files(name):
            instance, _, process = file.name.rpartition(".")
            if not carries(int(process), self.record.run_id):
                file.unlink(missing_ok=True)
                continue
            if file.name in self.replaced.get(name, ()):
                continue
            pid = _number(file)
            status = "READY" if pid else "STARTING"
            got = worker_report(self.record.state_dir, pid)
            workers.append(HostedWorker(id=instance, pid=pid, status=status, got=got, memory_bytes=resident_bytes(pid)))
        return workers

    def _instance_files(self, name: str) -> list[Path]:
        return sorted((self.instances / name).glob("*.[0-9]*"))

    def _why_ended(self) -> str | None:
        return None if self.process.poll() is None else triton_process.last_line(self.record)

    def _look_after(self) -> None:
        """The thread: load a model again whose process has died, and end where Triton has ended."""
        while not self.closing.wait(LOOK_S):
            if self.process.poll() is not None:
                logger.error("Triton ended by itself: %s", triton_process.last_line(self.record))
                os.kill(os.getpid(), signal.SIGTERM)
                return
            with self.change:
                for name in [name for name in self.models if not self._is_loading(name)]:
                    self._look_at(name)

    def _is_loading(self, name: str) -> bool:
        return name in self.loading and self.loading[name].is_alive()

    def _look_at(self, name: str) -> None:
        """Load a model again that has fewer instances than were loaded, and where that fails, again after a while."""
        served = self.serving.get(name)
        if served is None or len(self._workers(name)) >= served.min_workers or time.monotonic() < self.lost.get(name, 0.0):
            return
        logger.error("an instance of %s has died: the model is loaded again", name)
        self.lost[name] = 0.0
        left = {file.name for file in self._instance_files(name)}
        (self.repository / name / "1" / "model.py").touch()  # else nothing has changed for Triton
        self._load(served, lambda: self._let_go(served, left))

    def _let_go(self, model: HostedModel, left: set[str]) -> None:
        """Those that were left of a model have been replaced: they may finish a batch, then they are ended.

        Triton itself waits for what the dead one had in hand, which nobody answers any more.
        """
        self.replaced[model.name] = self.replaced.get(model.name, set()) | left
        threading.Thread(target=self._end, args=(model, left), daemon=True).start()

    def _end(self, model: HostedModel, left: set[str]) -> None:
        folder, deadline = self.instances / model.name, time.monotonic() + model.response_timeout_s
        while any((folder / one).exists() for one in left) and time.monotonic() < deadline:
            if self.closing.wait(LOOK_S):
                return
        for one in left:
            process = int(one.rpartition(".")[2])
            if (folder / one).exists() and carries(process, self.record.run_id):
                os.kill(process, signal.SIGKILL)
            (folder / one).unlink(missing_ok=True)
        self.replaced[model.name] -= left


def _number(file: Path) -> int:
    try:
        return int(file.read_text("ascii") or 0)
    except (OSError, ValueError):
        return 0


async def serve(record: ServerRecord) -> None:
    """Serve until SIGTERM."""
    ended = supervisor.end_at_signals()
    profile, tokens = record.effective_profile(), Tokens(record.state_dir)
    host = await asyncio.to_thread(Triton, record, profile, tokens.now)
    try:
        models = ModelTable(host, record.model_store, profile, record.overrides, record.kind)
        models.note = partial(default_versions.note, record)
        async with supervisor.management_api(models, record, tokens):
            await ended.wait()
    finally:
        await asyncio.wait_for(asyncio.to_thread(host.close), supervisor.CLOSE_S)


if __name__ == "__main__":
    supervisor.run(serve)
