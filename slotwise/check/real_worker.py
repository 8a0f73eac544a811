"""Run the real Python worker of TorchServe or MMS, and talk to it as its Java front end does."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from slotwise.bench.bodies import RequestBody
from slotwise.check.worker_protocol import SlotAnswer, load_message, predict_message, read_answers, read_status
from slotwise.errors import SlotwiseError

SERVERS = {"torchserve": ("ts", "torchserve"), "mms": ("mms", "multi-model-server")}  # kind: its package, its distribution
START_TIMEOUT_S = 180.0
EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b.*", re.MULTILINE)


class WorkerFault(Exception):
    """The worker gave no usable answer to a batch; the message says what its clients would have got, and why.

    ended: the worker takes no further batch.
    """

    def __init__(self, message: str, *, ended: bool = True) -> None:
        super().__init__(message)
        self.ended = ended


def installed(kind: str) -> str | None:
    """The version of a server, None where it is not installed."""
    package, distribution = SERVERS[kind]
    if importlib.util.find_spec(package) is None:
        return None
    return importlib.metadata.version(distribution)


class RealWorker:
    """`kind`'s own model_service_worker.py with one model. `folder`: an empty one for its socket, pipes and log."""

    def __init__(self, kind: str, model_dir: Path, folder: Path, timeout_s: float, environ: dict[str, str]) -> None:
        self.kind, self.model_dir, self.folder, self.timeout_s = kind, model_dir, folder, timeout_s
        folder.mkdir(parents=True, exist_ok=True)
        spec = importlib.util.find_spec(SERVERS[kind][0])
        if spec is None or not spec.origin:
            raise SlotwiseError(f"{kind} is not installed")
        package = Path(spec.origin).parent
        command = [sys.executable, str(package / "model_service_worker.py"), "--sock-type", "unix"]
        command += ["--sock-name", str(folder / "worker.9000")]
        if kind == "torchserve":
            command += ["--metrics-config", str(package / "configs" / "metrics.yaml")]
        else:
            command += ["--handler", "none", "--model-path", str(model_dir), "--model-name", "none"]
            command += ["--preload-model", "false", "--tmp-dir", str(folder)]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(  # both servers: the model's folder is on the path and the working directory
                command, cwd=model_dir, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(timeout_s)

    def load(self, name: str, handler: str, batch_size: int) -> None:
        """Load the model. Raises WorkerFault, which says why it could not."""
        self._connect()
        try:
            self.connection.sendall(load_message(self.kind, str(self.model_dir), name, handler, batch_size, "io"))
            code, message = read_status(self.connection)
            read_answers(self.connection)
        except TimeoutError as error:
            raise WorkerFault(f"it is not loaded after {self.timeout_s:.0f} s") from error
        except OSError as error:
            raise WorkerFault(f"the worker ended while it loaded the model{self._reason(0)}") from error
        if self.kind == "mms":
            for stream in ("stdout", "stderr"):
                threading.Thread(target=self._drain, args=(self.folder / f"io-{stream}",), daemon=True).start()
        if code != 200:
            raise WorkerFault(f"the model was not loaded: {message}{self._reason(0)}")

    def predict(self, bodies: Sequence[RequestBody]) -> list[SlotAnswer]:
        """Send one batch. Raises WorkerFault where there are no answers slot by slot."""
        log_size = len(self.log())
        try:
            self.connection.sendall(predict_message(bodies))
            code, message = read_status(self.connection)
            answers = read_answers(self.connection)
        except TimeoutError as error:
            raise WorkerFault(f"no answer in {self.timeout_s:.0f} s") from error
        except OSError as error:
            raise WorkerFault(f"the worker ended{self._reason(log_size)}") from error
        if code != 200:
            raise WorkerFault(f"the whole batch fails with {code} {message!r}{self._reason(log_size)}", ended=False)
        return answers

    def logged_exception(self, since: int = 0) -> str:
        """The last exception in the worker's log, "" where there is none."""
        exceptions = [line for line in EXCEPTION.findall(self.log()[since:]) if "Unknown exception" not in line]
        return exceptions[-1].strip() if exceptions else ""

    def log(self) -> str:
        """Everything the worker printed."""
        return (self.folder / "log").read_text("utf-8", "replace")

    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def close(self) -> None:
        """End the worker and the children that MMS forks."""
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> RealWorker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _connect(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.alive():
            try:
                return self.connection.connect(str(self.folder / "worker.9000"))
            except OSError:
                time.sleep(0.05)
        raise WorkerFault(f"the worker of {self.kind} did not start{self._reason(0)}")

    def _reason(self, since: int) -> str:
        """The exception behind a failure; the log may lag behind the socket for a moment."""
        for _ in range(6):
            if exception := self.logged_exception(since):
                return f" ({exception[:300]})"
            time.sleep(0.05)
        return ""

    def _drain(self, pipe: Path) -> None:
        """Copy one of MMS's two output pipes into the log: its worker waits until somebody reads them."""
        with pipe.open("rb") as source, (self.folder / "log").open("ab") as log:
            for line in source:
                log.write(line)
                log.flush()
