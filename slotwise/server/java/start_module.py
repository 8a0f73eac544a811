"""Run a server's own start module: with a folder and an environment of its own, until its APIs answer."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.errors import SlotwiseError
from slotwise.files.disk import written_whole
from slotwise.profiles.render import render_properties
from slotwise.profiles.server_logs import log4j2
from slotwise.server.java import cache as java_cache
from slotwise.server.java import worker_start
from slotwise.server.java.runtime import locale_for_paths, path_with_kill
from slotwise.server.java.start_java import MODULES
from slotwise.server.processes import MARK, start_time
from slotwise.server.record import Kind, ServerRecord

if TYPE_CHECKING:
    from slotwise.profiles.profile import Profile

STACK = re.compile(r"\s+(at |\.\.\. \d+ more)")
START_TIMEOUT_S = 180.0  # seconds on a quiet machine; a server that dies is noticed at once
HOST_TIMEOUT_S = 600.0  # of Ray and Triton, which start many processes: minutes on a busy machine
MODULE_TIMEOUT_S = 120.0
# Variables of our own environment that the server must not get, because they change where it reads or writes.
# PYTHONPATH: TorchServe puts it before the archive, whose own copy of the worker code would lose.
FOREIGN = {"TS_CONFIG_FILE", "LOG_LOCATION", "METRICS_LOCATION", "PYTHONPATH"} | {
    f"SLOTWISE_{what}" for what in ("PROFILE", "WORKER", "OVERRIDES", "SHARES")
}
# A Unix socket's path holds 107 bytes. The workers' are $TEMP/.ts.sock.9000, Ray's $TEMP/session_.../sockets/plasma_store.
SOCKET_PATH_LIMIT = 80
RAY_SOCKET_PATH_LIMIT = 38


def own_tmp_dir(state: Path, kind: Kind = "torchserve") -> Path:
    """Make a folder for this server's TMPDIR and TEMP, where both servers keep pid file, sockets and extracted archives."""
    path, limit = state / "tmp", RAY_SOCKET_PATH_LIMIT if kind == "ray" else SOCKET_PATH_LIMIT
    if len(os.fsencode(path)) > limit:
        system_tmp = tempfile.gettempdir()  # its path may be long, too
        is_short = len(os.fsencode(system_tmp)) + len("/slotwise-12345678") < limit
        return Path(tempfile.mkdtemp(prefix="slotwise-", dir=system_tmp if is_short else "/tmp"))
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    return path


def write_config(record: ServerRecord, profile: Profile, models: Mapping[str, Any]) -> None:
    """Write the server's config files into its folder, and delete what the last server of that name left there."""
    for stale in ("key_file.json", "server.log"):
        (record.state_dir / stale).unlink(missing_ok=True)
    shutil.rmtree(record.state_dir / "workers", ignore_errors=True)
    with written_whole(record.state_dir / "profile.json") as partial:
        partial.write_text(profile.model_dump_json(indent=2), "utf-8")
    if record.kind not in MODULES:
        return
    text = render_properties(profile, record.kind, model_store=record.model_store, ports=record.ports, models=models)
    (record.state_dir / "config.properties").write_text(text, "utf-8")
    (record.state_dir / "log4j2.xml").write_text(log4j2(record.kind, profile), "utf-8")


def environment(record: ServerRecord, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server: ours without what is foreign to it, its own folders, and `environ`."""
    inherited = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    own = {
        "TMPDIR": str(record.tmp_dir),
        "TEMP": str(record.tmp_dir),
        "SLOTWISE_STATE": str(record.state_dir),
        MARK: record.run_id,
    }
    if record.cluster:  # where Ray looks for the cluster that "auto" means: below our TMPDIR there is none
        own["RAY_TMPDIR"] = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    if record.kind in MODULES:
        own |= path_with_kill(record.state_dir / "bin")
    return {**inherited, **own, **locale_for_paths(), **environ}


def workers_environment(record: ServerRecord, profile: Profile) -> dict[str, str]:
    """What the environment tells the workers: the profile as it is now, and each model's cores."""
    return {"SLOTWISE_SHARES": json.dumps(record.shares), **profile.environment(record.overrides)}


def run_start_module(
    record: ServerRecord, arguments: list[str], environ: Mapping[str, str] | None = None, through: Sequence[str] = ()
) -> None:
    """Run the server's own start module in its folder; it returns at once and leaves Java's pid in TMPDIR.

    environ: added to the environment of the server and so of its workers. through: the module that runs it, with its arguments.
    """
    with (record.state_dir / "server.log").open("ab") as log:
        subprocess.run(
            [sys.executable, "-m", *(through or [MODULES[record.kind]]), *arguments],
            cwd=record.state_dir,
            env=environment(record, environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for us; we stop the server in order
            timeout=MODULE_TIMEOUT_S,
            check=False,
        )


def launch(
    record: ServerRecord, profile: Profile, home: Path, models: Mapping[str, Any], java_options: Sequence[str] | None = None
) -> ServerRecord:
    """Run the start module; returns the record with Java's pid and start time. java_options: None: those of Java's cache."""
    if java_options is None:
        java_options = java_cache.options(record.kind, home)
    config = "--ts-config" if record.kind == "torchserve" else "--mms-config"
    arguments = ["--start", config, "config.properties", "--log-config", "log4j2.xml"]
    arguments += ["--model-store", str(record.model_store)]
    arguments += ["--ncs"] if record.kind == "torchserve" else []
    if models and not profile.takes_registrations(record.kind):
        arguments += ["--models", *(version["marName"] for model in models.values() for version in model.values())]
    environ = {"JAVA_HOME": str(home), **workers_environment(record, profile)}
    try:
        run_start_module(record, arguments, environ, _through_java_start(record, java_options))
        pid = int((record.tmp_dir / ".model_server.pid").read_text())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        raise SlotwiseError(f"{record.kind} did not start: {last_line(record)}", _log_hint(record)) from None
    return dataclasses.replace(record, pid=pid, started=start_time(pid))


def _through_java_start(record: ServerRecord, java_options: Sequence[str]) -> list[str]:
    """How to run the start module of a server that java_start knows; another one is run as it is."""
    if not java_cache.known(record.kind):
        return []
    python = worker_start.python(record.state_dir / "bin") if record.kind == "torchserve" else sys.executable
    return ["slotwise.server.java.start_java", record.kind, python, *java_options, "--"]


def wait_until_up(record: ServerRecord) -> None:
    """Wait until both APIs answer. Any status will do: without a token TorchServe answers 400."""
    import httpx  # noqa: PLC0415  slow to import

    timeout_s = START_TIMEOUT_S if record.kind in MODULES else HOST_TIMEOUT_S
    deadline = time.monotonic() + timeout_s
    waiting = [f"{record.inference_url}/ping", f"{record.management_url}/models"]
    with httpx.Client(trust_env=False, timeout=5) as http:
        while waiting:
            if not record.alive():
                raise SlotwiseError(f"{record.kind} died while starting: {last_line(record)}", _log_hint(record))
            if time.monotonic() > deadline:
                raise SlotwiseError(f"{record.kind} did not answer within {timeout_s:.0f} s", _log_hint(record))
            try:
                http.get(waiting[0])
                waiting.pop(0)
            except httpx.HTTPError:
                time.sleep(0.03)


def _log_hint(record: ServerRecord) -> str:
    return f"its output is in {record.state_dir / 'server.log'}"


def last_line(record: ServerRecord) -> str:
    """The last line of the server's own output that is neither blank nor one of a Java stack."""
    try:
        text = (record.state_dir / "server.log").read_text("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not STACK.match(line)]
    return lines[-1] if lines else ""
