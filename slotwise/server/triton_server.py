"""A Triton under Slotwise's management API: the supervising process of `slotwise serve --server triton`.

A model is a folder of the state's `repository/`, and its workers are instances of that model. Triton serves one version of it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from slotwise.archive.triton_repository import export, write_config
from slotwise.errors import SlotwiseError
from slotwise.server import supervisor, triton_process
from slotwise.server.hosted_models import ApiError, HostedModel, HostedWorker, Observation
from slotwise.server.processes import carries, memory_bytes

if TYPE_CHECKING:
    from slotwise.profiles.profile import Profile
    from slotwise.server.record import ServerRecord

logger = logging.getLogger(__name__)

START_S = 60.0
LOAD_S = 900.0  # a large model with many instances, on a busy machine
UNLOAD_S = 150.0
LOOK_S = 1.0  # how often Triton and its processes are looked after
NOISE = re.compile(
    r"(load failed for model '[^']*': )?(version \d+ is at UNAVAILABLE state: )?(Internal: )?(TritonModelException: )?"
)


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
        self.serving: set[str] = set()
        self.closing = threading.Event()
        self.process = triton_process.launch(record, profile, tokens, self.repository)
        headers = {"Authorization": f"Bearer {tokens['management']}"}
        self.http = httpx.Client(base_url=record.inference_url, headers=headers, trust_env=False, timeout=LOAD_S)
        try:
            self._wait_until_live()
            if not triton_process.hide(self.process.pid, list(tokens.values())):
                logger.warning("the tokens can be read in the list of processes: the system lets nobody overwrite them")
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._look_after, daemon=True).start()

    def register(self, model: HostedModel, *, default: bool) -> None:
        """Write the model into the repository, and have Triton load it."""
        if not default:
            message = f"Triton serves one version of a model: unregister {model.name}, or register this one under another name"
            raise ApiError(409, "ConflictStatusException", message)
        export(model.info, _profile(model), self.repository, **self._options(model))
        self.models[model.name] = model
        self._load(model)

    def unregister(self, model: HostedModel) -> None:
        """Unload the model; returns when what it had in hand is answered."""
        self._join(model.name)
        self.models.pop(model.name, None)
        self.failures.pop(model.name, None)
        self._unload(model.name)
        shutil.rmtree(self.repository / model.name, ignore_errors=True)

    def scale(self, model: HostedModel) -> None:
        """Load the model with another number of instances; the old ones answer until the new ones are ready."""
        self._join(model.name)
        self.models[model.name] = model
        if not model.min_workers:
            self._unload(model.name)
            return
        write_config(model.info, _profile(model), self.repository / model.name, **self._options(model))
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
        self.http.close()
        triton_process.stop(self.process)
        triton_process.remove_shared_memory(self.record.run_id)

    def _options(self, model: HostedModel) -> dict[str, Any]:
        gpu = model.profile.device == "cuda" and triton_process.has_gpu()
        return {"name": model.name, "gpu": gpu, "overrides": tuple(self.record.overrides)}

    def _load(self, model: HostedModel, before: Callable[[], None] = lambda: None) -> None:
        """Have Triton load the model, in a thread. What goes wrong stands in `failures`."""

        def load() -> None:
            try:
                before()
                self._call(f"/v2/repository/models/{model.name}/load")
                self.serving.add(model.name)
            except SlotwiseError as error:
                logger.error("%s: %s", model.name, error.message)
                self.failures[model.name] = error.message

        self.failures.pop(model.name, None)
        self.loading[model.name] = threading.Thread(target=load, daemon=True)
        self.loading[model.name].start()

    def _join(self, name: str) -> None:
        if name in self.loading:
            self.loading.pop(name).join()

    def _unload(self, name: str) -> None:
        self.serving.discard(name)
        self._call(f"/v2/repository/models/{name}/unload")
        deadline = time.monotonic() + UNLOAD_S
        while time.monotonic() < deadline:
            states = {one["name"]: one.get("state") for one in self._call("/v2/repository/index") if one.get("state")}
            if states.get(name) not in ("READY", "UNLOADING") and not self._workers(name):
                return
            time.sleep(0.1)
        logger.error("%s was not unloaded within %.0f s", name, UNLOAD_S)

    def _workers(self, name: str) -> list[HostedWorker]:
        """The instances of a model whose process lives. A file NAME.PID of that process holds the worker's pid, or 0."""
        found = []
        for file in sorted((self.instances / name).glob("*.[0-9]*")):
            instance, _, process = file.name.rpartition(".")
            if not carries(int(process), self.record.run_id):
                file.unlink(missing_ok=True)
                continue
            pid = _number(file)
            status = "READY" if pid else "STARTING"
            found.append(
                HostedWorker(id=instance, pid=pid, status=status, got=self._report(pid), memory_bytes=memory_bytes(pid))
            )
        return found

    def _report(self, pid: int) -> dict[str, Any]:
        try:
            report: dict[str, Any] = json.loads((self.record.state_dir / "workers" / f"{pid}.json").read_text("utf-8"))
            return report
        except (OSError, ValueError):
            return {}

    def _call(self, path: str) -> Any:
        """POST to Triton; its answer's JSON. Raises SlotwiseError with its reason."""
        try:
            response = self.http.post(path)
        except httpx.HTTPError as error:
            raise SlotwiseError(f"Triton does not answer: {error}", f"see {self.record.state_dir / 'logs'}") from error
        try:
            answer = response.json() if response.content else {}
        except ValueError:
            answer = {"error": response.text}
        if response.status_code >= 400:
            reason = NOISE.sub("", str(answer.get("error", "")).partition("\n\nAt:")[0], count=1).strip().rstrip(";")
            raise SlotwiseError(reason or "Triton gave no reason", f"see {self.record.state_dir / 'logs'}")
        return answer

    def _wait_until_live(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            if self.process.poll() is not None:
                raise SlotwiseError(f"Triton ended: {triton_process.last_line(self.record)}", "its log is logs/triton.log")
            if time.monotonic() > deadline:
                raise SlotwiseError(f"Triton did not answer within {START_S:.0f} s", "its log is logs/triton.log")
            try:
                if self.http.get("/v2/health/live").status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)

    def _look_after(self) -> None:
        """The thread: load a model again whose process has died, and end where Triton has ended."""
        while not self.closing.wait(LOOK_S):
            if self.process.poll() is not None:
                logger.error("Triton ended by itself: %s", triton_process.last_line(self.record))
                os.kill(os.getpid(), signal.SIGTERM)
                return
            for model in [*self.models.values()]:
                loading = self.loading.get(model.name)
                settled = loading is not None and not loading.is_alive() and model.name not in self.failures
                if settled and len(self._workers(model.name)) < model.min_workers:
                    logger.error("an instance of %s has died: the model is loaded again", model.name)
                    self._load(model, lambda name=model.name: self._unload(name))  # type: ignore[misc]


def _profile(model: HostedModel) -> Profile:
    """The profile with what the registration says."""
    changes = {
        "batch_size": model.batch_size,
        "max_batch_delay_ms": model.max_batch_delay_ms,
        "initial_workers": max(1, model.min_workers),
        "response_timeout_s": model.response_timeout_s,
    }
    return model.profile.but(changes, f"the registration of {model.name}")


def _number(file: Path) -> int:
    try:
        return int(file.read_text("ascii") or 0)
    except (OSError, ValueError):
        return 0


if __name__ == "__main__":
    supervisor.main(Triton)
