"""How a model is served here, and what is said of its workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotwise.archive.guarding.foreign import GUARD
from slotwise.backends.local.dispatcher import Linger
from slotwise.backends.local.gpus import Gpus
from slotwise.backends.local.prints import Prints
from slotwise.backends.local.sequence_queue import SequenceLimits
from slotwise.worker.hosts.child import START_TIMEOUT_S


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How one version of a model is served.

    model_dir: its archive, extracted and verified; its workers share it. environ: of its workers, whole. prints: for their
    output. gpus: that workers go round; None: they see what this process does. max_memory_bytes: a worker that takes more is
    replaced; 0: none is. idle_timeout_s: it sleeps when nobody has asked it for so long; 0: never. refuses_asleep: who asks it
    then gets 503 at once, and does not wait for its workers. start_timeout_s: for loading, warming up and proving it.
    repeatable: whether its author lets a request be sent twice. pieces: its guarded handler sends pieces of its answers.
    sequences: its requests belong to some. tickets: none may wait for a worker. name_worker(): a name for a new worker; "" for
    one of its own.
    histories: where what led to a worker's death is written; None: nowhere. card: what the archive takes (ModelCard), as it was
    read when it was registered.
    """

    name: str
    version: str
    archive: Path
    model_dir: Path
    environ: Mapping[str, str]
    prints: Prints
    batch_size: int
    max_batch_delay_s: float = 0.0
    response_timeout_s: float = 120.0
    job_queue_size: int = 1000
    linger: Linger = "free"
    target_s: float = 0.0
    gpus: Gpus | None = None
    max_memory_bytes: int = 0
    idle_timeout_s: float = 0.0
    refuses_asleep: bool = False
    start_timeout_s: float = START_TIMEOUT_S
    repeatable: bool = True
    pieces: bool = False
    sequences: SequenceLimits | None = None
    tickets: bool = False
    name_worker: Callable[[], str] = lambda: ""
    histories: Path | None = None
    card: Any = None

    @property
    def content(self) -> str:
        """The digest of its archive's files (ArchiveInfo.content); "" where it has none."""
        return str(getattr(self.card, "content", ""))

    @property
    def foreign(self) -> bool:
        """Whether another tool made its archive: there is a guard around its handler, or it runs bare."""
        return self.module.startswith(GUARD)

    @property
    def module(self) -> str:
        """What its workers run; "" where the archive was built before there were frames."""
        for package, folder in ((f"{GUARD}.hosts", f"{GUARD}/hosts"), ("slotwise.worker.hosts", "slotwise/worker/hosts")):
            if (self.model_dir / folder).is_dir():
                return f"{package}.framed" if (self.model_dir / folder / "framed.py").is_file() else ""
        return ""


@dataclass(frozen=True)
class WorkerNow:
    """One worker as it is now. status: STARTING, READY, UNLOADING or ASLEEP. pid: 0: none yet. got: what it runs on."""

    id: str
    pid: int
    status: str
    got: Mapping[str, Any]
