"""Client of a server's management API, the same for every server.

It hides what differs: `describe` is a list on one and an object on the other, timeouts are seconds or minutes, MMS has no
versions and no tokens. Every refusal is one SlotwiseError with the server's own message.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx

from slotwise.client.api import TIMEOUT_S, Api
from slotwise.client.live_model import LiveModel, live_model
from slotwise.errors import SlotwiseError, what_brings
from slotwise.profiles.batch_delay import check_delay, whole_as_int
from slotwise.server.failures import WorkerLog

if TYPE_CHECKING:
    from slotwise.server.lifecycle import ServerRecord

__all__ = ["LiveModel", "ManagementClient", "RegisteredModel"]

READY_TIMEOUT_S = 180.0
SCALE_ATTEMPTS = 5
RACES = ("ConcurrentModificationException", '"job" is null')  # what TorchServe says of its own while it scales under load


@dataclass(frozen=True)
class RegisteredModel:
    """A registered model and the archive it came from."""

    name: str
    archive: str


class ManagementClient:
    """Manages the models and workers of one server.

        with ManagementClient(record) as client:
            client.register("digits.mar", batch_size=8, max_batch_delay=10, initial_workers=1)
            client.wait_ready("digits", workers=1)

    record: what `slotwise serve` wrote down about the server. timeout_s: seconds for one call. transport: httpx's, for tests.

    Every method raises SlotwiseError, one line and a hint, where the server refuses or does not answer.
    """

    def __init__(
        self, record: ServerRecord, *, timeout_s: float = TIMEOUT_S, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.record = record
        self._api = Api(record, "management", timeout_s=timeout_s, transport=transport)
        self._log = WorkerLog(record)

    def register(
        self,
        archive: str,
        *,
        name: str | None = None,
        batch_size: int | None = None,
        max_batch_delay: float | None = None,
        initial_workers: int | None = None,
        response_timeout: int | None = None,
    ) -> None:
        """Register an archive by its file name in the model store. Returns while its workers still start.

        max_batch_delay: in milliseconds; no fraction on TorchServe and MMS. response_timeout: in seconds.

        None leaves a value to the server's configuration.
        """
        unit_s = 60 if self.record.kind == "mms" else 1
        if max_batch_delay is not None:
            check_delay(self.record.kind, max_batch_delay)
            max_batch_delay = whole_as_int(max_batch_delay)  # TorchServe ignores "5.0"
        params = {
            "url": archive,
            "model_name": name,
            "batch_size": batch_size,
            "max_batch_delay": max_batch_delay,
            "initial_workers": initial_workers,
            "response_timeout": None if response_timeout is None else math.ceil(response_timeout / unit_s),
            "synchronous": "false",
        }
        self._log.mark()
        self._api.call(f"register {archive}", "POST", "/models", params)

    def unregister(self, model: str, version: str | None = None) -> None:
        """Remove a model, or one version of it; requests that wait in its queue are lost.

        Raises SlotwiseError where MMS, which keeps one version and reads none, has another one.

        The default version stays while there are others: the error says how to make another one the default.
        """
        self._check_version(model, version)
        try:
            self._api.call(f"unregister {model}", "DELETE", self._path(model, version))
        except SlotwiseError as error:
            if "default version" not in error.message:
                raise
            versions = [live.version for live in self.describe_all(model)]
            default = self.describe(model).version
            other = next((one for one in versions if one != default), "VERSION")
            raise SlotwiseError(
                f"{model} {default} is the default of {len(versions)} versions ({', '.join(sorted(versions))})",
                f"`slotwise default {model} {other}` makes another the default; --version {other} unregisters that one",
            ) from error

    def set_default(self, model: str, version: str) -> None:
        """Let requests that name no version go to this one."""
        if self.record.kind == "mms":
            raise SlotwiseError("Multi Model Server keeps one version of a model", "serve with --server torchserve")
        self._api.call(f"make {version} the default of {model}", "PUT", f"{self._path(model, version)}/set-default")

    def scale(self, model: str, workers: int, version: str | None = None, most: int | None = None) -> None:
        """Set the number of workers. Returns while they still start or stop.

        most: where it follows the load, it does so between `workers` and this from now on.
        """
        self._check_version(model, version)
        params = {"min_worker": workers, "max_worker": workers if most is None else most, "synchronous": "false"}
        for attempt in range(SCALE_ATTEMPTS):
            try:
                self._api.call(f"scale {model}", "PUT", self._path(model, version), params)
                return
            except SlotwiseError as error:  # TorchServe changes what it is reading; trying again is safe
                if not any(word in error.message for word in RACES) or attempt == SCALE_ATTEMPTS - 1:
                    raise
            time.sleep(0.2)

    def list(self) -> tuple[RegisteredModel, ...]:
        """Every registered model."""
        models: tuple[RegisteredModel, ...] = ()
        token: str | None = None
        while True:
            page = self._api.call("list the models", "GET", "/models", {"limit": 100, "next_page_token": token})
            models += tuple(RegisteredModel(str(m["modelName"]), str(m.get("modelUrl", ""))) for m in page.get("models") or [])
            token = page.get("nextPageToken")
            if token is None:
                return models

    def describe(self, model: str, version: str | None = None) -> LiveModel:
        """One model: its settings, its workers, and what each of them runs with. Without a version: the default one."""
        return self._described(model, version)[0]

    def describe_all(self, model: str) -> tuple[LiveModel, ...]:
        """Every registered version of a model; MMS has one."""
        return self._described(model, None if self.record.kind == "mms" else "all")

    def ready(self) -> bool:
        """Whether there are models and each of them has a READY worker."""
        models = self.list()
        return bool(models) and all(self.describe(model.name).ready_workers > 0 for model in models)

    def wait_ready(
        self,
        model: str,
        workers: int = 1,
        *,
        version: str | None = None,
        timeout_s: float = READY_TIMEOUT_S,
        progress: Callable[[int, int], None] = lambda ready, requested: None,
    ) -> LiveModel:
        """Wait until exactly `workers` workers are READY and no other is left.

        timeout_s: seconds. progress: called with the number of READY workers and the number that is awaited.
        Raises SlotwiseError, with the last line of the worker's log, where workers keep dying or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            live = self.describe(model, version)
            progress(live.ready_workers, workers)
            if live.has(workers):
                return live
            problem = None if live.ready_workers else live.failure or self._log.failure(model, workers)
            if problem is None and time.monotonic() > deadline:
                problem = f"{live.ready_workers} of {workers} workers ready after {timeout_s:.0f} s"
            if problem:
                hint = what_brings(problem) or f"see {self.record.state_dir / 'logs'}"
                raise SlotwiseError(f"{model} does not become ready: {problem}", hint)
            time.sleep(0.1)

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def __enter__(self) -> ManagementClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check_version(self, model: str, version: str | None) -> None:
        """Raise SlotwiseError where MMS has another version than this one, as far as its workers say."""
        if version and self.record.kind == "mms" and (there := self.describe(model).version) not in ("", version):
            hint = "`slotwise list` shows the models of this server"
            raise SlotwiseError(f"there is no version {version} of {model}: Multi Model Server has {there}", hint)

    def _path(self, model: str, version: str | None = None) -> str:
        path = f"/models/{quote(model, safe='')}"
        return f"{path}/{quote(version, safe='')}" if version and self.record.kind != "mms" else path

    def _described(self, model: str, version: str | None) -> tuple[LiveModel, ...]:
        answer = self._api.call(f"describe {model}", "GET", self._path(model, version))
        versions = answer.get("versions", [answer])
        if not versions:
            raise SlotwiseError(f"the server knows no version of {model}", "`slotwise list` shows its models")
        return tuple(live_model(entry, self.record) for entry in versions)
