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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from slotwise.archive.build import extract
from slotwise.archive.packaging import WORKER
from slotwise.errors import SlotwiseError

LocalRequest = bytes | tuple[bytes, Mapping[str, str]]  # a body, or a body with its headers


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
    """An archive that answers in a child process; a `with` block or `close` ends it."""

    def __init__(self, archive: Path, *, batch_size: int = 8, environ: Mapping[str, str] | None = None) -> None:
        self.archive = archive
        self.lock = threading.Lock()
        self.folder = tempfile.TemporaryDirectory(prefix="slotwise-local-")
        try:
            model_dir = extract(archive, Path(self.folder.name) / "model")
            self._need_worker(model_dir)
            self.log = (Path(self.folder.name) / "log").open("w+")
            variables = {**os.environ, **(environ or {}), "PYTHONPATH": str(model_dir)}
            command = [sys.executable, "-P", "-m", "slotwise.worker.hosts.local"]
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
        pairs = [(one, {}) if isinstance(one, bytes) else one for one in requests]
        entries = [{"headers": dict(headers), "bytes": len(body)} for body, headers in pairs]
        message = {"requests": entries, "n": len(pairs) if n is None else n, "seconds": seconds}
        reply, bodies = self._ask(message, [body for body, _ in pairs])
        keys = ("status", "content_type", "headers")
        answers = zip(reply["answers"], bodies, strict=True)
        return [LocalAnswer(**{key: one[key] for key in keys}, body=body) for one, body in answers], reply["times"]

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

    def _need_worker(self, model_dir: Path) -> None:
        settings = model_dir / "slotwise.json"
        carried = json.loads(settings.read_text("utf-8")) if settings.is_file() else {}
        if carried.get("worker", 1) < WORKER:
            hint = "build it again; TorchServe and MMS serve it as it is"
            raise SlotwiseError(f"{self.archive.name} carries no worker that answers without a server", hint)

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
