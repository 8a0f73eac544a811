"""A deployment as people have it: a folder, a config.properties, a model store, and the word that starts it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from slotwise.profiles.ports import Ports
from slotwise.server.java.runtime import java_home

TIMEOUT_S = READY_S = 240.0  # for workers that import torch side by side on a busy machine
TORCHSERVE, OURS = "ts.model_server", "slotwise.drop_in.command_line"  # what stands where the word stands


@dataclass(frozen=True)
class Deployment:
    """One that runs in `folder`, where its key_file.json and logs are. pid: of the process that started it."""

    folder: Path
    ports: Ports
    scheme: str = "http"
    pid: int = 0

    @property
    def inference(self) -> str:
        """The address of predictions."""
        return f"{self.scheme}://127.0.0.1:{self.ports.inference}"

    @property
    def management(self) -> str:
        """The address of models."""
        return f"{self.scheme}://127.0.0.1:{self.ports.management}"

    @property
    def metrics(self) -> str:
        """The address of /metrics."""
        return f"{self.scheme}://127.0.0.1:{self.ports.metrics}"

    def headers(self, kind: str = "management") -> dict[str, str]:
        """The header with a token; none where the deployment has no tokens."""
        try:
            keys = json.loads((self.folder / "key_file.json").read_text("utf-8"))
        except OSError:
            return {}
        return {"authorization": f"Bearer {keys[kind]['key']}"}

    def wait_ready(self, model: str, workers: int = 1) -> None:
        """Wait until so many workers of a model are READY."""
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            seen = self.call("GET", f"/models/{model}")
            if seen.status_code == 200 and sum(one["status"] == "READY" for one in seen.json()[0]["workers"]) >= workers:
                return
            time.sleep(0.1)
        log = (self.folder / "logs" / "model_log.log").read_text("utf-8", "replace")
        raise AssertionError(f"{model} is not ready: {log[-3000:]}")

    def call(self, method: str, path: str, **params: str) -> httpx.Response:
        """A call of the management API."""
        return self.asked(method, self.management + path, params=params, headers=self.headers())

    def asked(self, method: str, url: str, **given: object) -> httpx.Response:
        """Any request."""
        return httpx.request(method, url, timeout=TIMEOUT_S, trust_env=False, verify=False, **given)  # type: ignore[arg-type]

    def printed(self) -> str:
        """What it has printed."""
        return (self.folder / "printed").read_text("utf-8", "replace")


def environment(folder: Path, environ: Mapping[str, str] = {}) -> dict[str, str]:
    """The environment of a deployment's commands."""
    (folder / "tmp").mkdir(exist_ok=True)
    own = {"JAVA_HOME": str(java_home()), "TEMP": str(folder / "tmp"), "TMPDIR": str(folder / "tmp")}
    return {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **own, **environ}


def configured(folder: Path, ports: Ports, lines: Sequence[str] = (), scheme: str = "http") -> None:
    """Write its config.properties."""
    addresses = {"inference": ports.inference, "management": ports.management, "metrics": ports.metrics}
    keys = [f"{name}_address={scheme}://127.0.0.1:{port}" for name, port in addresses.items()]
    keys += [f"grpc_inference_port={ports.grpc_inference}", f"grpc_management_port={ports.grpc_management}"]
    (folder / "config.properties").write_text("\n".join([*keys, *lines]), "utf-8")


@contextlib.contextmanager
def deployed(
    program: str,
    folder: Path,
    store: Path,
    lines: Sequence[str] = (),
    options: Sequence[str] = ("--ncs", "--enable-model-api"),
    environ: Mapping[str, str] = {},
    scheme: str = "http",
    ports: Ports | None = None,
    named: bool = True,
) -> Iterator[Deployment]:
    """A running deployment. program: TORCHSERVE or OURS. lines: of its config.properties, beside its ports: free ones.

    named: the command line names config.properties; else there is none, and the newest snapshot is what it starts from.
    """
    folder.mkdir(exist_ok=True)
    ports = ports or Ports.free()
    configured(folder, ports, lines, scheme)
    if not named:
        (folder / "config.properties").unlink()
    command = [sys.executable, "-m", program, "--start", "--foreground", *options]
    command += [*(["--ts-config", "config.properties"] if named else []), "--model-store", str(store)]
    with (folder / "printed").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(folder, environ), stdout=log, stderr=log, start_new_session=True
        )
    deployment = Deployment(folder, ports, scheme, process.pid)
    try:
        _wait(deployment, process)
        yield deployment
    finally:
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGTERM if program == OURS else signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(120)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            psutil.wait_procs(children, timeout=30)


def _wait(deployment: Deployment, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(httpx.HTTPError, OSError, ValueError, KeyError):
            if deployment.call("GET", "/models").status_code == 200:
                return
        if process.poll() is not None or time.monotonic() > until:
            raise AssertionError(f"the deployment does not answer: {deployment.printed()[-2000:]}")
        time.sleep(0.1)
