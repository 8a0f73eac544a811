"""Answer batches with an archive, without a server: for notebooks, timing and tests.

    with load("model_store/digits.mar") as digits:
        print(digits.answer([Path("seven.png").read_bytes()])[0].json())

The archive is verified, unpacked into a folder of its own, and served by its own copy of the worker in a child process. Only
plain data crosses: headers as JSON, bodies as bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from slotwise.archive.build import extract
from slotwise.archive.foreign import GUARD
from slotwise.archive.packaging import WORKER
from slotwise.errors import SlotwiseError

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
    HTTP status that a count is for, or None.
    """

    def __init__(
        self,
        archive: Path,
        *,
        batch_size: int = 8,
        environ: Mapping[str, str] | None = None,
        measured: Callable[[str, float, str, int | None], None] = lambda name, value, unit, code: None,
    ) -> None:
        self.archive, self.measured = archive, measured
        self.lock = threading.Lock()
        self.folder = tempfile.TemporaryDirectory(prefix="slotwise-local-")
        try:
            model_dir = extract(archive, Path(self.folder.name) / "model")
            package = self._worker_package(model_dir)
            self.log = (Path(self.folder.name) / "log").open("w+")
            variables = {**os.environ, **(environ or {}), "PYTHONPATH": str(model_dir)}
            command = [sys.executable, "-P", "-m", f"{package}.hosts.local"]
            self.child = subprocess.Popen(
                command, cwd=model_dir, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log
            )
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
        return dict(self._ask({"start": {"batch_size": batch_size}}, [])[0]["started"])

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
        message = {"requests": entries, "n": len(sent) if n is None else n, "seconds": seconds}
        reply, bodies = self._ask(message, sent)
        for number in reply.get("metrics", []):  # an archive of an earlier release has none
            self.measured(*number)
        keys = ("status", "content_type", "headers")
        answers = zip(reply["answers"], bodies, strict=True)
        return [LocalAnswer(**{key: one[key] for key in keys}, body=body) for one, body in answers], reply["times"]

    @property
    def alive(self) -> bool:
        """Whether the child still answers."""
        return self.child.poll() is None

    def close(self) -> None:
        """End the child and remove what was unpacked."""
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout, self.log):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what could not be sent any more
                    pipe.close()
        self.folder.cleanup()

    def __enter__(self) -> LocalModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _worker_package(self, model_dir: Path) -> str:
        """The package of the archive's own worker, or of the guard around a stranger's handler."""
        if (model_dir / GUARD / "hosts" / "local.py").is_file():
            return GUARD
        settings = model_dir / "slotwise.json"
        carried = json.loads(settings.read_text("utf-8")) if settings.is_file() else {}
        if carried.get("worker", 1) < WORKER:
            hint = "build it again, or guard a stranger's; TorchServe and MMS serve it as it is"
            raise SlotwiseError(f"{self.archive.name} carries no worker that answers without a server", hint)
        return "slotwise.worker"

    def _ask(self, message: dict[str, Any], bodies: Sequence[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """Send one message and wait for its answer, one thread at a time. Raises SlotwiseError where there is none."""
        with self.lock:
            try:
                return self._exchange(message, bodies)
            except SlotwiseError:
                raise
            except BaseException:  # half a message was sent: no later answer would belong to its question
                self.child.kill()
                raise

    def _exchange(self, message: dict[str, Any], bodies: Sequence[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        try:
            self.child.stdin.write(json.dumps(message).encode() + b"\n" + b"".join(bodies))
            self.child.stdin.flush()
            line = self.child.stdout.readline()
        except OSError:
            line = b""
        if not line:
            raise SlotwiseError(f"{self.archive.name}: {self._last_log_line()}", "see `slotwise check`")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise SlotwiseError(f"{self.archive.name}: {reply['error']}", "see `slotwise check`")
        return reply, [self.child.stdout.read(one["bytes"]) for one in reply.get("answers", [])]

    def _last_log_line(self) -> str:
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().splitlines() if line.strip()]
        return lines[-1] if lines else "the handler ended"


def load(archive: str | Path, *, batch_size: int = 8, profile: str | None = None) -> LocalModel:
    """Start the archive's own worker in a child process. batch_size: the most requests of one batch.

    Raises SlotwiseError for an archive that is not sound, is of an older release, or does not start.
    """
    return LocalModel(Path(archive), batch_size=batch_size, environ={"SLOTWISE_PROFILE": profile} if profile else None)
