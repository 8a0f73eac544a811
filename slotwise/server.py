"""Start and stop a real TorchServe or Multi Model Server, one folder `.slotwise/NAME` a server.

    server.json  config.properties  log4j2.xml     what it was started with
    key_file.json                                  TorchServe's tokens
    logs/  server.log                              what it says
    workers/PID.json                               what each worker says it got

Every process of a server carries `SLOTWISE_RUN=<run_id>` in its environment. That, not a pid, tells its processes from
others: a pid may have been given to someone else, and orphans of a crashed server have lost their parent.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slotwise import project
from slotwise.errors import SlotwiseError
from slotwise.java import java_home
from slotwise.ports import Ports, check_free
from slotwise.processes import carries, end

if TYPE_CHECKING:
    from slotwise.profiles import Profile

Kind = Literal["torchserve", "mms"]

__all__ = ["Kind", "Ports", "ServerRecord", "all_running", "check_can_start", "java_home", "need", "running", "start", "stop"]

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
MODULES = {"torchserve": "ts.model_server", "mms": "mms.model_server"}
PACKAGES = {
    "torchserve": "pip install 'slotwise[torchserve]'",
    "mms": "pip install --no-deps multi-model-server==1.1.11",
}
# What in our own environment would change where the server looks or writes.
FOREIGN = ("TS_CONFIG_FILE", "LOG_LOCATION", "METRICS_LOCATION", "SLOTWISE_PROFILE", "SLOTWISE_OVERRIDES")
SOCKET_PATH_LIMIT = 80  # a Unix socket's path holds 107 bytes; the workers' are $TEMP/.ts.sock.9000


@dataclass(frozen=True)
class ServerRecord:
    """A server that was started: enough to find it, to talk to it and to stop it. Stored as server.json.

    overrides: what `--set` said. tmp_dir: the server's own TMPDIR and TEMP.
    """

    name: str
    kind: Kind
    pid: int
    ports: Ports
    profile: str
    overrides: dict[str, str]
    model_store: Path
    state_dir: Path
    tmp_dir: Path
    run_id: str

    @property
    def inference_url(self) -> str:
        """Predictions and /ping."""
        return f"http://127.0.0.1:{self.ports.inference}"

    @property
    def management_url(self) -> str:
        """Models and workers."""
        return f"http://127.0.0.1:{self.ports.management}"

    @property
    def metrics_url(self) -> str:
        """Prometheus metrics."""
        if self.kind == "mms":
            return self.inference_url
        return f"http://127.0.0.1:{self.ports.metrics}"

    def alive(self) -> bool:
        """Whether the server's own process runs."""
        return carries(self.pid, self.run_id)

    def save(self) -> None:
        """Write server.json."""
        data = {**self.__dict__, "ports": self.ports.__dict__}
        partial = self.state_dir / "server.json.partial"
        partial.write_text(json.dumps(data, indent=2, default=str), "utf-8")
        partial.replace(self.state_dir / "server.json")

    @classmethod
    def load(cls, state_dir: Path) -> ServerRecord | None:
        """The record in `state_dir`; None where there is none or it cannot be read."""
        try:
            data: dict[str, Any] = json.loads((state_dir / "server.json").read_text("utf-8"))
            paths = {key: Path(data[key]) for key in ("model_store", "state_dir", "tmp_dir")}
            return cls(**{**data, **paths, "ports": Ports(**data["ports"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None


def running(name: str = "default") -> ServerRecord | None:
    """The server of that name, where one runs."""
    record = ServerRecord.load(project.state_root() / name)
    return record if record is not None and record.alive() else None


def need(name: str = "default") -> ServerRecord:
    """The running server of that name; SlotwiseError where none runs."""
    record = running(name)
    if record is None:
        raise SlotwiseError(f"no server named {name!r} is running", "`slotwise serve MODEL` starts one")
    return record


def all_running() -> list[ServerRecord]:
    """Every server that was started from here and runs."""
    records = [ServerRecord.load(file.parent) for file in sorted(project.state_root().glob("*/server.json"))]
    return [record for record in records if record is not None and record.alive()]


def check_can_start(name: str, kind: Kind, ports: Ports) -> None:
    """Raise SlotwiseError where a server could not be started; ends what a crashed one of that name left behind."""
    if running(name):
        raise SlotwiseError(
            f"a server named {name!r} is already running", f"`slotwise stop {name}` ends it; --name starts another"
        )
    java_home()
    if importlib.util.find_spec(MODULES[kind].split(".")[0]) is None:
        raise SlotwiseError(f"{kind} is not installed in {sys.prefix}", PACKAGES[kind])
    stale = ServerRecord.load(project.state_root() / name)
    if stale is not None:
        stop(stale)
    check_free(ports)


def start(
    name: str,
    kind: Kind,
    profile: Profile,
    *,
    model_store: Path,
    ports: Ports | None = None,
    overrides: Mapping[str, str] | None = None,
    models: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> ServerRecord:
    """Start a server and wait until its APIs answer; no model is registered.

    models: what render_properties takes, so that a plain registration gets the profile's batch settings.
    Raises SlotwiseError, with nothing left running, where it cannot.
    """
    ports = ports or Ports()
    check_can_start(name, kind, ports)
    home = java_home()
    state = project.state_dir(name)
    run_id, tmp_dir = uuid.uuid4().hex, _tmp_dir(state)
    record = ServerRecord(
        name, kind, 0, ports, profile.name, dict(overrides or {}), model_store.resolve(), state, tmp_dir, run_id
    )
    try:
        _write_config(record, profile, models or {})
        record = _launch(record, profile, home)
        record.save()
        say(f"waiting for {kind} (pid {record.pid}) to answer")
        _wait_until_up(record)
    except BaseException:
        stop(record)
        raise
    return record


def stop(record: ServerRecord) -> None:
    """End the server and every process it started; also where it crashed and left some behind."""
    with contextlib.suppress(SlotwiseError):
        if record.alive():
            _run_start_module(record, ["--stop"], java_home())
    end(record.run_id, STOP_TIMEOUT_S if record.kind == "torchserve" else 1.0)
    kept = ServerRecord.load(record.state_dir)
    if kept is None or kept.run_id == record.run_id:
        for leftover in ("server.json", "key_file.json"):
            (record.state_dir / leftover).unlink(missing_ok=True)
        shutil.rmtree(record.state_dir / "workers", ignore_errors=True)
    shutil.rmtree(record.tmp_dir, ignore_errors=True)


def log_tail(record: ServerRecord, lines: int = 1) -> str:
    """The last lines of the server's own output that are not blank."""
    with contextlib.suppress(OSError):
        text = (record.state_dir / "server.log").read_text("utf-8", "replace")
        return "\n".join([line.strip() for line in text.splitlines() if line.strip()][-lines:])
    return ""


def _tmp_dir(state: Path) -> Path:
    """A folder of this server's own: both servers keep their pid file, sockets and extracted archives in TMPDIR and TEMP."""
    path = state / "tmp"
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        return Path(tempfile.mkdtemp(prefix="slotwise-"))
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    return path


def _write_config(record: ServerRecord, profile: Profile, models: Mapping[str, Any]) -> None:
    from slotwise.profiles import render_properties
    from slotwise.server_logs import log4j2

    for stale in ("key_file.json", "server.log"):
        (record.state_dir / stale).unlink(missing_ok=True)
    shutil.rmtree(record.state_dir / "workers", ignore_errors=True)
    text = render_properties(profile, record.kind, model_store=record.model_store, ports=record.ports, models=models)
    (record.state_dir / "config.properties").write_text(text, "utf-8")
    (record.state_dir / "log4j2.xml").write_text(log4j2(record.kind, profile), "utf-8")


def _environment(record: ServerRecord, home: Path, overrides: Mapping[str, Any]) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    tmp = str(record.tmp_dir)
    return {
        **inherited,
        "JAVA_HOME": str(home),
        "TMPDIR": tmp,
        "TEMP": tmp,
        "SLOTWISE_PROFILE": record.profile,
        "SLOTWISE_OVERRIDES": json.dumps(dict(overrides)),
        "SLOTWISE_STATE": str(record.state_dir),
        "SLOTWISE_RUN": record.run_id,
    }


def _run_start_module(
    record: ServerRecord, arguments: list[str], home: Path, overrides: Mapping[str, Any] | None = None
) -> None:
    """Run the server's own start module in its folder; it returns at once and leaves Java's pid in TMPDIR."""
    with (record.state_dir / "server.log").open("ab") as log:
        subprocess.run(
            [sys.executable, "-m", MODULES[record.kind], *arguments],
            cwd=record.state_dir,
            env=_environment(record, home, overrides or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for us; we stop the server in order
            timeout=STOP_TIMEOUT_S,
            check=False,
        )


def _launch(record: ServerRecord, profile: Profile, home: Path) -> ServerRecord:
    config = "--ts-config" if record.kind == "torchserve" else "--mms-config"
    arguments = ["--start", config, "config.properties", "--log-config", "log4j2.xml"]
    arguments += ["--model-store", str(record.model_store)]
    arguments += ["--ncs"] if record.kind == "torchserve" else []
    worker = profile.worker()
    overrides = {key: worker[key] for key in record.overrides if key in worker}
    _run_start_module(record, arguments, home, overrides)
    try:
        pid = int((record.tmp_dir / ".model_server.pid").read_text())
    except (OSError, ValueError):
        raise SlotwiseError(f"{record.kind} did not start: {log_tail(record)}", _log_hint(record)) from None
    return ServerRecord(**{**record.__dict__, "pid": pid})


def _wait_until_up(record: ServerRecord) -> None:
    """Wait until both APIs answer anything at all; without a token TorchServe answers 400."""
    import httpx

    deadline = time.monotonic() + START_TIMEOUT_S
    waiting = [f"{record.inference_url}/ping", f"{record.management_url}/models"]
    with httpx.Client(trust_env=False, timeout=5) as http:
        while waiting:
            if not record.alive():
                raise SlotwiseError(f"{record.kind} died while starting: {log_tail(record)}", _log_hint(record))
            if time.monotonic() > deadline:
                raise SlotwiseError(f"{record.kind} did not answer within {START_TIMEOUT_S:.0f} s", _log_hint(record))
            try:
                http.get(waiting[0])
                waiting.pop(0)
            except httpx.HTTPError:
                time.sleep(0.1)


def _log_hint(record: ServerRecord) -> str:
    return f"its output is in {record.state_dir / 'server.log'}"
