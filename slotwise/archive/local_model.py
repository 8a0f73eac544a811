"""Answer batches with an archive, without a server: for notebooks, timing and tests.

    with load("model_store/digits.mar") as digits:
        print(digits.answer([Path("seven.png").read_bytes()])[0].json())

The archive is verified, unpacked into a folder of its own, and served by its own copy of the worker in a child process. Only
plain data crosses: headers as JSON, bodies as bytes.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from slotwise.archive.earlier_worker import EarlierWorker
from slotwise.archive.guarding.foreign import GUARD, TERMS
from slotwise.archive.inspection import extract
from slotwise.archive.packaging import WITHOUT_SERVER, WORKER
from slotwise.errors import SlotwiseError
from slotwise.worker.environment.settings import json_object
from slotwise.worker.hosts.child import START_TIMEOUT_S, Worker, WorkerDied, WorkerFailed, WorkerLate

T = TypeVar("T")
log = logging.getLogger(__name__)
# A body, a body with its headers, or with the parameters of its address, too.
LocalRequest = bytes | tuple[bytes, Mapping[str, str]] | tuple[bytes, Mapping[str, str], Mapping[str, str]]


@dataclass(frozen=True)
class LocalAnswer:
    """One request's answer. headers: the handler's own and the batch's."""

    status: int
    content_type: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body parsed."""
        return json.loads(self.body)


class LocalModel:
    """An archive that answers in a child process; a `with` block or `close` ends it.

    measured(name, value, unit, code): takes the worker's numbers after each batch; unit is "ms", "%" or "" (a count), code an
    HTTP status that a count is for, or None; what it raises costs no answer. start_timeout_s: how long it may take to start.
    model_dir: where the archive is unpacked already.
    """

    def __init__(
        self,
        archive: Path,
        *,
        batch_size: int = 8,
        environ: Mapping[str, str] | None = None,
        measured: Callable[[str, float, str, int | None], None] = lambda name, value, unit, code: None,
        start_timeout_s: float = START_TIMEOUT_S,
        model_dir: Path | None = None,
    ) -> None:
        self.archive, self.measured, self.start_timeout_s = archive, measured, start_timeout_s
        self.lock, self.unmeasured, self.ended = threading.Lock(), False, False
        self.folder = tempfile.TemporaryDirectory(prefix="slotwise-local-")
        try:
            model_dir = model_dir or extract(archive, Path(self.folder.name) / "model")
            kind, module = self._host(model_dir)
            variables = {**os.environ, **(environ or {}), "PYTHONPATH": str(model_dir)}
            self.log = (Path(self.folder.name) / "log").open("a+", encoding="utf-8", errors="replace")
            self.worker = kind(sys.executable, module, model_dir, variables, self.log.fileno())
        except BaseException:
            self.folder.cleanup()
            raise
        try:
            self.started: dict[str, Any] = self.start(batch_size)
        except BaseException:
            self.close()
            raise

    def start(self, batch_size: int) -> dict[str, Any]:
        """Start the handler again, as after a registration with this batch size. Returns its engine and profile."""
        return self._asked(lambda: self.worker.start(batch_size, self.start_timeout_s))

    def answer(self, requests: Sequence[LocalRequest]) -> list[LocalAnswer]:
        """Answer one batch: a body, or a body and its headers, each. Exactly one answer a request, in order."""
        return self.timed(requests)[0]

    def timed(
        self, requests: Sequence[LocalRequest], n: int | None = None, seconds: float = 0.0
    ) -> tuple[list[LocalAnswer], list[dict[str, float]]]:
        """Answer n of the requests at a time, again and again for so many seconds; it ends early where one is refused.

        Returns the answers of the last batch, and total_ms, decode_ms and inference_ms of every batch.
        """
        entries, sent = [], []
        for one in requests:
            body, *about = (one,) if isinstance(one, bytes) else one
            headers, query = [dict(each) for each in (*about, {}, {})][:2]
            entries.append({"headers": headers, "query": query, "bytes": len(body)})
            sent.append(body)
        count = len(sent) if n is None else n
        message = {"requests": entries, "n": count, "seconds": seconds}
        reply = self._asked(lambda: self.worker.answer(message, sent, count))
        if reply.dead:  # its last answers: it would not take another batch, also before its process is gone
            self.ended = True
            self.worker.kill()
        self._measure(reply.metrics)
        answers = [LocalAnswer(one.status, one.content_type, one.headers, one.body) for one in reply.answers]
        return answers, reply.times

    @property
    def child(self) -> subprocess.Popen[bytes]:
        """The process that answers."""
        return self.worker.child

    @property
    def alive(self) -> bool:
        """Whether the child still answers."""
        return not self.ended and self.worker.alive

    def close(self) -> None:
        """End the child and remove what was unpacked."""
        self.worker.kill()  # who waits for an answer does so no longer
        with self.lock:
            self.worker.close()
        self.log.close()
        self.folder.cleanup()

    def __enter__(self) -> LocalModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _host(self, model_dir: Path) -> tuple[type[Worker], str]:
        """What asks the archive's own worker, or the guard around a stranger's handler, and the module that answers there.

        Raises SlotwiseError for an archive of 0.1.0, and for one of a later release than this.
        """
        guarded = (model_dir / GUARD / "hosts" / "local.py").is_file()
        carried = json_object(model_dir / (TERMS if guarded else "slotwise.json"))
        can = carried.get("worker", WITHOUT_SERVER if guarded else 1)
        if can < WITHOUT_SERVER:
            hint = "build it again, or guard a stranger's; TorchServe and MMS serve it as it is"
            raise SlotwiseError(f"{self.archive.name} carries no worker that answers without a server", hint)
        if can > WORKER:
            raise SlotwiseError(f"{self.archive.name} is of slotwise {carried.get('slotwise')}", "upgrade slotwise to load it")
        package = GUARD if guarded else "slotwise.worker"
        return Worker if can == WORKER else EarlierWorker, f"{package}.hosts.local"

    def _measure(self, metrics: Sequence[tuple[str, float, str, int | None]]) -> None:
        """Hand on the worker's numbers; an archive of an earlier release has none."""
        for number in metrics:
            try:
                self.measured(*number)
            except Exception:  # the answers are there, whatever a handler counts
                if not self.unmeasured:
                    log.exception("%s: a number of its worker cannot be taken: %.80r", self.archive.name, number)
                self.unmeasured = True

    def _asked(self, question: Callable[[], T]) -> T:
        """What the child answers, one thread at a time. Raises SlotwiseError where there is no answer."""
        hint = "see `slotwise check`"
        try:
            with self.lock:
                return question()
        except WorkerFailed as error:
            raise SlotwiseError(f"{self.archive.name}: {error}", hint) from error
        except WorkerLate as late:
            raise SlotwiseError(f"{self.archive.name}: {late}", hint) from late
        except WorkerDied as died:
            raise SlotwiseError(f"{self.archive.name}: {self._last_log_line()}", hint) from died

    def _last_log_line(self) -> str:
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().splitlines() if line.strip()]
        return lines[-1] if lines else "the handler ended"


def load(archive: str | Path, *, batch_size: int = 8, profile: str | None = None) -> LocalModel:
    """Start the archive's own worker in a child process. batch_size: the most requests of one batch.

    Raises SlotwiseError for an archive that is not sound, is of an older release, or does not start.
    """
    return LocalModel(Path(archive), batch_size=batch_size, environ={"SLOTWISE_PROFILE": profile} if profile else None)
