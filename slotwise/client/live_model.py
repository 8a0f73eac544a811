"""Read a server's description of a model into one form for all servers.

TorchServe answers `describe` with a list (one object a version), MMS with an object; both name things in camelCase. Each
worker reports what it really got (engine, precision, device) in .slotwise/NAME/workers/PID.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slotwise.profiles.memory import resident_bytes
from slotwise.server.java import mms_workers
from slotwise.server.processes import worker_report

if TYPE_CHECKING:
    from slotwise.server.lifecycle import ServerRecord


@dataclass(frozen=True)
class LiveWorker:
    """One worker process. status: STARTING, READY, UNLOADING or ASLEEP (a request starts it). pid: 0 where there is none.

    got: what the worker reported when it started: engine, precision, device, threads, padding, profile, batch_size, notes, and
    the digest of its archive's content.
    """

    id: str
    pid: int
    status: str
    memory_bytes: int
    gpu: bool
    got: Mapping[str, Any]

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.status in ("READY", "ASLEEP")


@dataclass(frozen=True)
class LiveModel:
    """One registered version of a model. max_batch_delay in ms.

    profile, engine, precision, device, threads, padding: what its workers got, None where they do not report it. rows: what is
    known of whether batch-mates change an answer.
    failure: why it cannot become ready, where the server says so (Ray, Triton).
    batch_cost: what its batches cost, where the server learns that. stateful: its requests belong to sequences.
    response_timeout: in seconds; None where the server does not say it (MMS). queue_size: so many may wait there; 0: unknown.
    scaled_there: its server chooses how many workers it has, and refuses to be told.
    """

    name: str
    version: str
    archive: str
    batch_size: int
    max_batch_delay: float
    min_workers: int
    max_workers: int
    workers: tuple[LiveWorker, ...]
    profile: str | None
    engine: str | None
    precision: str | None
    device: str | None
    threads: int | None
    padding: str | None
    failure: str = ""
    rows: str | None = None
    batch_cost: Mapping[str, Any] | None = None
    stateful: bool = False
    response_timeout: int | None = None
    queue_size: int = 0
    scaled_there: bool = False

    def has(self, workers: int) -> bool:
        """Whether it has just so many workers, and all are READY; or as many as its server chooses, where that does (Ray)."""
        enough = self.min_workers <= self.ready_workers if self.scaled_there else self.ready_workers == workers
        return enough and self.ready_workers == len(self.workers)

    @property
    def asleep(self) -> bool:
        """Whether it has no worker until a request starts them."""
        return bool(self.workers) and all(worker.status == "ASLEEP" for worker in self.workers)

    @property
    def contents(self) -> set[str]:
        """Of which archives its workers say that they run (ArchiveInfo.content); several while they are replaced."""
        return {str(worker.got.get("archive") or "") for worker in self.workers} - {""}

    @property
    def readiness(self) -> str:
        """In words: "2 of 2 workers READY", or "asleep"."""
        return "asleep" if self.asleep else f"{self.ready_workers} of {len(self.workers)} workers READY"

    @property
    def ready_workers(self) -> int:
        """How many workers take requests."""
        return sum(worker.ready for worker in self.workers)


def live_model(answer: Mapping[str, Any], record: ServerRecord) -> LiveModel:
    """One version's object of a describe answer, joined with what its workers reported."""
    loaded = mms_workers.loaded_workers(record) if record.kind == "mms" else {}
    workers = tuple(_worker(entry, record, loaded) for entry in answer.get("workers") or [])
    got: Mapping[str, Any] = next((worker.got for worker in workers if worker.got), {})
    return LiveModel(
        name=str(answer["modelName"]),
        version=str(answer.get("modelVersion") or got.get("version") or ""),
        archive=str(answer.get("modelUrl", "")),
        batch_size=int(answer.get("batchSize", 1)),
        max_batch_delay=answer.get("maxBatchDelay", 0),
        min_workers=int(answer.get("minWorkers", 0)),
        max_workers=int(answer.get("maxWorkers", 0)),
        workers=workers,
        failure=str(answer.get("failure", "")),
        batch_cost=answer.get("batchCost"),
        stateful=bool(answer.get("stateful")),
        scaled_there=record.kind == "ray" and int(answer.get("minWorkers", 0)) < int(answer.get("maxWorkers", 0)),
        response_timeout=answer.get("responseTimeout") if record.kind != "mms" else None,
        queue_size=sum(int(count) for count in (answer.get("jobQueueStatus") or {}).values()),
        **{key: got.get(key) for key in ("profile", "engine", "precision", "device", "threads", "padding", "rows")},
    )


def _worker(entry: Mapping[str, Any], record: ServerRecord, loaded: Mapping[str, int]) -> LiveWorker:
    """One worker. While it starts it has no pid: TorchServe calls it UNLOADING then, MMS READY, we STARTING."""
    id_ = str(entry.get("id", ""))
    pid = loaded.get(mms_workers.id_end(id_), 0) if record.kind == "mms" else max(0, int(entry.get("pid") or 0))
    return LiveWorker(
        id=id_,
        pid=pid,
        status=str(entry.get("status", "")) if pid or entry.get("status") == "ASLEEP" else "STARTING",
        memory_bytes=int(entry["memoryUsage"]) if "got" in entry else resident_bytes(pid) if pid else 0,
        gpu=str(entry.get("gpu", "")).lower() == "true",
        # Ray and Triton say it themselves: it may be of another machine.
        got=entry["got"] if "got" in entry else worker_report(record.state_dir, pid),
    )
