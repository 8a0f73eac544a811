"""Run the real Python worker of TorchServe or MMS, and talk to it as its Java front end does; or that of our own host."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from slotwise import __version__
from slotwise.bench.bodies import RequestBody
from slotwise.check.framed_worker import FramedWorker
from slotwise.check.worker_process import CheckedWorker, WorkerFault
from slotwise.check.worker_protocol import SlotAnswer, WrongIds, load_message, predict_message, read_answers, read_status
from slotwise.errors import SlotwiseError

SERVERS = {"torchserve": ("ts", "torchserve"), "mms": ("mms", "multi-model-server")}  # kind: its package, its distribution
OWN_HOST = "slotwise"  # `slotwise serve --server slotwise`: always there
START_TIMEOUT_S = 180.0

__all__ = ["OWN_HOST", "SERVERS", "CheckedWorker", "RealWorker", "WorkerFault", "installed", "started"]


def installed(kind: str) -> str | None:
    """The version of a server, None where it is not installed."""
    if kind == OWN_HOST:
        return __version__
    package, distribution = SERVERS[kind]
    if importlib.util.find_spec(package) is None:
        return None
    return importlib.metadata.version(distribution)


def started(kind: str, model_dir: Path, folder: Path, timeout_s: float, environ: dict[str, str]) -> CheckedWorker:
    """A worker as `kind` starts it, its model not loaded yet."""
    if kind == OWN_HOST:
        return FramedWorker(model_dir, folder, timeout_s, environ)
    return RealWorker(kind, model_dir, folder, timeout_s, environ)


class RealWorker(CheckedWorker):
    """`kind`'s own model_service_worker.py with one model. `folder`: an empty one for its socket, pipes and log."""

    def __init__(self, kind: str, model_dir: Path, folder: Path, timeout_s: float, environ: dict[str, str]) -> None:
        super().__init__(model_dir, folder, timeout_s)
        self.kind, self.next_id = kind, 0
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
        self.start(command, environ)  # both servers: the model's folder is on the path and the working directory
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
            raise WorkerFault(f"the worker ended while it loaded the model{self.reason(0)}") from error
        if self.kind == "mms":
            for stream in ("stdout", "stderr"):
                threading.Thread(target=self._drain, args=(self.folder / f"io-{stream}",), daemon=True).start()
        if code != 200:
            raise WorkerFault(f"the model was not loaded: {message}{self.reason(0)}")

    def predict(self, bodies: Sequence[RequestBody]) -> list[SlotAnswer]:
        """Send one batch. Raises WorkerFault where there are no answers slot by slot."""
        log_size, first = len(self.log()), self.next_id
        self.next_id += len(bodies)
        try:
            self.connection.sendall(predict_message(bodies, first))
            code, message = read_status(self.connection)
            answers = read_answers(self.connection, first)
        except TimeoutError as error:
            raise WorkerFault(f"no answer in {self.timeout_s:.0f} s") from error
        except WrongIds as wrong:
            raise WorkerFault(str(wrong)) from wrong
        except OSError as error:
            raise WorkerFault(f"the worker ended{self.reason(log_size)}") from error
        if code != 200:
            raise WorkerFault(f"the whole batch fails with {code} {message!r}{self.reason(log_size)}", ended=False)
        return answers

    def _connect(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.alive():
            try:
                return self.connection.connect(str(self.folder / "worker.9000"))
            except OSError:
                time.sleep(0.05)
        raise WorkerFault(f"the worker of {self.kind} did not start{self.reason(0)}")

    def _drain(self, pipe: Path) -> None:
        """Copy one of MMS's two output pipes into the log: its worker waits until somebody reads them."""
        with pipe.open("rb") as source, (self.folder / "log").open("ab") as log:
            for line in source:
                log.write(line)
                log.flush()
