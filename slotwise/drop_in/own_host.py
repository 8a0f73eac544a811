"""The workers of a deployment: TorchServe's names for them, their environment, and the log lines that people wait for."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.archive.inspection import extract
from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused
from slotwise.backends.local.gpus import Gpus
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.prints import LinePrints
from slotwise.backends.local.sequence_queue import BUSY, SequenceLimits
from slotwise.backends.local.served_model import Link, ServedModel
from slotwise.backends.local.worker_link import PACKAGES, Measured
from slotwise.backends.management.models import ApiError, HostedModel, Observation
from slotwise.drop_in.configuration import Configuration
from slotwise.drop_in.line_files import LogFiles
from slotwise.drop_in.server_numbers import ServerNumbers
from slotwise.errors import SlotwiseError
from slotwise.host.local_backend import LocalBackend
from slotwise.host.model_host import OwnHost
from slotwise.host.model_versions import ModelVersions

if TYPE_CHECKING:
    from slotwise.server.record import ServerRecord

log = logging.getLogger("org.pytorch.serve.wlm.WorkerThread")  # whose lines these are

FIRST_WORKER = 9000
PIP_OPTIONS = ("--no-input", "--disable-pip-version-check", "--no-color")
INSTALL_S = 600.0
SEQUENCES = {"maxNumSequence": 1, "maxSequenceJobQueueSize": 1, "sequenceMaxIdleMSec": 0, "sequenceTimeoutMSec": 0}
TOLD = ("TS_REQUEST_SEQUENCE_ID", "TS_REQUEST_SEQUENCE_START", "TS_REQUEST_SEQUENCE_END")  # where handlers find the headers
TOOK_TOO_LONG = "it did not answer within"


class LoggedModel(ServedModel):
    """A model whose workers' lives are logged as TorchServe logs them."""

    def __init__(self, settings: ModelSettings, measured: Measured, numbers: ServerNumbers) -> None:
        super().__init__(settings, measured)
        self.numbers = numbers
        self._began: dict[Link, float] = {}

    async def answer(self, request: BackendRequest) -> BackendAnswer:
        """See ServedModel; with job tickets as many requests are taken as there are workers, and nobody waits."""
        if self.settings.tickets and self.ledger.open >= len(self.queue.workers):
            self.queue.not_run(request)
            raise Refused(503, BUSY.format(request.model))
        return await super().answer(request)

    async def _open(self) -> None:
        before, began = set(self.links), time.monotonic()
        await super()._open()
        for link in set(self.links) - before:
            self._began[link] = began
            log.debug("%s State change null -> WORKER_STARTED", link.name)

    def _started(self, link: Link) -> None:
        log.debug("%s State change WORKER_STARTED -> WORKER_MODEL_LOADED", link.name)
        if self._failed or self._short_lives:
            log.info("Auto recovery succeeded, reset recoveryStartTS")
        super()._started(link)
        self.numbers.loaded(link.name, time.monotonic() - self._began.get(link, time.monotonic()))

    def _ended(self, link: Link) -> None:
        state = "WORKER_MODEL_LOADED" if link.got else "WORKER_STARTED"
        if not link.worker.retiring:
            log.info("%s Worker disconnected. %s", link.name, state)
            if TOOK_TOO_LONG in link.why:
                log.info("Number or consecutive unsuccessful inference 1")
            log.info("Auto recovery start timestamp: %d", int(time.time() * 1000))
        log.debug("%s State change %s -> WORKER_STOPPED", link.name, state)
        self._began.pop(link, None)
        self.numbers.ended(link.name)
        super()._ended(link)

    def _fail(self, why: str) -> None:
        late = "did not start within" in why
        said = "Backend worker did not respond in given time" if late else why
        log.error("Backend worker error\norg.pytorch.serve.wlm.WorkerInitializationException: %s", said)
        super()._fail(why)
        log.info("Retry worker: %s in %d seconds.", self.id, self._failed)


class DropInHost(OwnHost):
    """Models as queues and workers of this process."""

    def __init__(
        self,
        loaded: ModelVersions,
        record: ServerRecord,
        configuration: Configuration,
        files: LogFiles,
        numbers: ServerNumbers,
    ) -> None:
        super().__init__(loaded, record, configuration.gpus())
        self.prints = LinePrints(files.model)
        self.environ = _environ(configuration)
        self.sequence_headers = _sequence_headers(configuration)
        self.installs = configuration.flag("install_py_dep_per_model")
        self.numbers = numbers
        self._next = itertools.count(FIRST_WORKER)

    def register(self, model: HostedModel, *, default: bool) -> None:
        """See OwnHost; first its packages are installed, where the deployment wants that."""
        packages = self._packages(model)
        shutil.rmtree(packages, ignore_errors=True)  # of one whose end has failed
        try:
            if self.installs and model.info.requirements:
                _install(model, packages)
            super().register(model, default=default)
        except BaseException:
            shutil.rmtree(packages, ignore_errors=True)
            raise

    def unregister(self, model: HostedModel) -> None:
        """See OwnHost."""
        super().unregister(model)
        shutil.rmtree(self._packages(model), ignore_errors=True)

    def _environ(self, model: HostedModel) -> dict[str, str]:
        """See OwnHost; its workers find modules where the deployment's PYTHONPATH has some, too, after the archive's own."""
        places = [str(self._packages(model))] if self._packages(model).is_dir() else []
        places += [str(Path(place).absolute()) for place in self.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
        return {**super()._environ(model), **({PACKAGES: os.pathsep.join(places)} if places else {})}

    def _packages(self, model: HostedModel) -> Path:
        """The folder of what was installed for it."""
        return self.folder / f"{model.id}@packages"

    def served(self, settings: ModelSettings, measured: Measured) -> ServedModel:
        """See OwnHost."""
        return LoggedModel(settings, measured, self.numbers)

    def wishes(self, model: HostedModel) -> dict[str, Any]:
        """See OwnHost; as its model-config.yaml has them."""
        config = model.info.config
        tickets = {"tickets": bool(config.get("useJobTicket"))}
        if not config.get("sequenceBatching"):
            return tickets
        most, waiting, idle_ms, total_ms = (
            config[key] if type(config.get(key)) is int and config[key] > 0 else least for key, least in SEQUENCES.items()
        )
        limits = SequenceLimits(max(most, model.max_workers), waiting, idle_ms / 1000, total_ms / 1000)
        return {**tickets, "sequences": replace(limits, headers=self.sequence_headers)}

    def gpus_of(self, model: HostedModel) -> Gpus:
        """See OwnHost; where its model-config.yaml names some, those."""
        ids = model.info.config.get("deviceIds")
        return self.gpus.only(ids) if ids and self.gpus.names else self.gpus

    def worker_name(self, model: HostedModel) -> str:
        """`W-9000-echo_1.0`."""
        return f"W-{next(self._next)}-{model.name}_{model.version}"

    def describe(self, model: HostedModel) -> Observation:
        """See OwnHost; a worker's id is its number, and its model-config.yaml's settings are those that hold."""
        seen = super().describe(model)
        workers = [replace(one, id=one.id.split("-")[1]) if one.id.startswith("W-") else one for one in seen.workers]
        return replace(seen, workers=tuple(workers), settings=_settings(model.info.config, self.wishes(model)))


@dataclass(eq=False)
class CountedVersions(ModelVersions):
    """The models, whose handlers' numbers count by TorchServe's names, too."""

    loading: bool = True
    numbers: ServerNumbers = field(kw_only=True)

    def measured(self, model: str, name: str, value: float, unit: str, code: int | None) -> None:
        """See ModelVersions."""
        super().measured(model, name, value, unit, code)
        if name in self._names[model]:
            self.numbers.from_handler(model, name, value, unit)

    def told_elsewhere(self, name: str) -> bool:
        """See ModelVersions; by two names it would count twice."""
        return name in self.numbers.models


class CountedBackend(LocalBackend):
    """The models' queues, whose answers count as TorchServe counts them."""

    numbers: ServerNumbers

    async def answer(self, request: BackendRequest) -> BackendAnswer:
        """See LocalBackend."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            self.loaded.find(request.model, request.version)
        except Refused as refused:
            known = request.model in self.loaded.by_name
            version = f"Model version: {request.version} does not exist for model: {request.model}"
            missing = Refused(404, version if known else f"Model not found: {request.model}")
            raise (refused if self.loaded.loading else missing) from None
        answer = await super().answer(request)
        now = loop.time()
        taken_at = min(max(request.taken_at, began), now)
        self.numbers.inferred(request.model, request.version, taken_at - began, now - began)
        return answer


def _settings(config: Mapping[str, Any], wishes: Mapping[str, Any]) -> dict[str, Any]:
    """What a description says of a model-config.yaml, and of what the host makes of it."""
    settings: dict[str, Any] = {
        "continuousBatching": bool(config.get("continuousBatching")),
        "useJobTicket": wishes["tickets"],
        "stateful": "sequences" in wishes,
    }
    if "sequences" in wishes:
        limits: SequenceLimits = wishes["sequences"]
        settings |= {"maxNumSequence": limits.most, "maxSequenceJobQueueSize": limits.most_waiting}
        settings |= {
            "sequenceMaxIdleMSec": round(1000 * limits.idle_s),
            "sequenceTimeoutMSec": round(1000 * limits.total_s),
        }
    return settings


def _install(model: HostedModel, folder: Path) -> None:
    """Have pip install what an archive requires into this folder, in the unpacked archive. Raises ApiError."""
    listed = model.info.requirements
    folder.mkdir(parents=True)
    # -P: no module of the archive is taken for one of pip's
    command = [sys.executable, "-P", "-m", "pip", "install", *PIP_OPTIONS, "--target", str(folder.resolve()), "-r", listed]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": INSTALL_S, "stdin": subprocess.DEVNULL}
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="requires-") as place:
            done = subprocess.run(command, cwd=extract(model.info.path, Path(place, "archive"), trusted=True), **options)
        failed = done.returncode != 0
        printed = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    except subprocess.TimeoutExpired:
        failed, printed = True, [f"ERROR: it takes more than {INSTALL_S:.0f} s"]
    if failed:
        why = next((line for line in printed if line.startswith("ERROR:")), printed[-1] if printed else "pip says nothing")
        message = f"Custom pip package installation failed for model {model.name}: {why.removeprefix('ERROR: '):.300}"
        raise ApiError(400, "ModelException", message)
    installed = next((line for line in printed if line.startswith("Successfully installed")), "nothing was to be installed")
    log.info("%s %s, %s: %s", model.name, model.version, listed, installed)


def _sequence_headers(configuration: Configuration) -> tuple[str, str, str]:
    """The headers that carry a sequence's id, that begin it and that end it."""
    usual = {key: f"ts_request_sequence_{key}" for key in ("id", "start", "end")}
    first, second, third = (configuration.text(f"ts_header_key_sequence_{key}", name).lower() for key, name in usual.items())
    return first, second, third


def _environ(configuration: Configuration) -> dict[str, str]:
    """What every worker gets of our environment, and what TorchServe's own handlers read in it."""
    pattern = configuration.text("blacklist_env_vars")
    try:
        hidden = re.compile(pattern) if pattern else None
    except re.error as error:
        raise SlotwiseError(f"blacklist_env_vars is no pattern: {error}", "correct config.properties") from None
    kept = {name: value for name, value in os.environ.items() if not (hidden and hidden.fullmatch(name))}
    kept["TS_LIMIT_MAX_IMAGE_PIXELS"] = configuration.text("limit_max_image_pixels", "true")
    kept["TS_DECODE_INPUT_REQUEST"] = configuration.text("decode_input_request", "true")
    kept |= dict(zip(TOLD, _sequence_headers(configuration), strict=True))
    if envelope := configuration.text("service_envelope"):
        kept["TS_SERVICE_ENVELOPE"] = envelope
    return kept
