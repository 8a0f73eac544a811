"""Start and stop a real server (TorchServe, Multi Model Server, Ray, Triton), one folder `.slotwise/NAME` a server.

    server.json  profile.json  config.properties  log4j2.xml   what it was started with
    key_file.json                                  its tokens; MMS has none
    logs/  server.log                              its logs and output
    workers/PID.json                               what each worker reports: engine, precision, threads

Every process of a server carries `SLOTWISE_RUN=<run_id>` in its environment. So its workers are found also where the
server has crashed and they have lost their parent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise import interrupts
from slotwise.errors import MMS, SlotwiseError, pip_install
from slotwise.files import project
from slotwise.interrupts import held, let_through
from slotwise.log_format import VARIABLES
from slotwise.profiles.ports import Ports, check_free
from slotwise.profiles.render import registrable
from slotwise.server import supervisor
from slotwise.server.java import cache as java_cache
from slotwise.server.java.runtime import check_paths, java_home
from slotwise.server.java.start_java import MODULES
from slotwise.server.java.start_module import (
    environment,
    launch,
    own_tmp_dir,
    run_start_module,
    wait_until_up,
    workers_environment,
    write_config,
)
from slotwise.server.processes import end
from slotwise.server.record import Kind, ServerRecord, all_running, in_its_place, is_wanted, need, running
from slotwise.server.triton import process as triton_process

if TYPE_CHECKING:
    from slotwise.profiles.profile import Profile

__all__ = [
    "Kind",
    "Ports",
    "ServerRecord",
    "all_running",
    "check_can_start",
    "java_home",
    "need",
    "running",
    "start",
    "stop",
    "wait_until_ended",
]

STOP_TIMEOUT_S = 20.0
HOST_STOP_TIMEOUT_S = 60.0  # what was deployed on somebody else's cluster is taken away first
FOREGROUND_POLL_S = 0.3
DYING_S = 10.0  # a killed process gives its memory back first, and then carries no mark by which it is known
SUCCESSION_S = 2.0  # between the two servers of `apply`
REMOVALS = 10


def check_can_start(name: str, kind: Kind, ports: Ports) -> None:
    """Raise SlotwiseError where a server could not be started. Ends what a crashed server of that name left behind."""
    if running(name):
        raise SlotwiseError(
            f"a server named {name!r} is already running", f"`slotwise stop {name}` ends it; --name starts another"
        )
    if kind in supervisor.HOSTS:
        supervisor.check_installed(kind)
    else:
        java_home()
        if importlib.util.find_spec(MODULES[kind].split(".")[0]) is None:
            raise SlotwiseError(f"{kind} is not installed", pip_install(MMS if kind == "mms" else '"slotwise[torchserve]"'))
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
    shares: Mapping[str, int] | None = None,
    cluster: str = "",
    expected: Sequence[str] = (),
    java_options: Sequence[str] | None = None,
) -> ServerRecord:
    """Start a server and wait until its APIs answer; no model is registered.

    overrides: the keys that `--set` and the environment set; `profile` has them already.
    models: the batch settings of models that are registered later by a plain `POST /models?url=`, in the form that
    render_properties takes; None: of every known model. With model_api = false the server loads just these at its start.
    shares: the cores that a model's workers have; all of them for a model that is not named.
    cluster: the address of a Ray that it joins; "": it starts its own.
    expected: the names of the models that the caller registers then, one for each version; until all of a name are there,
    requests for those that are not are told to wait.
    java_options: of TorchServe's and MMS's Java, beside the profile's; None: those that use its cache (java_cache).
    Raises SlotwiseError, with nothing left running, where the server does not start. A caller that must not lose the record
    to a signal holds signals meanwhile (slotwise.interrupts).
    """
    ports = ports or Ports()
    check_can_start(name, kind, ports)
    hosted, state = kind in supervisor.HOSTS, project.state_dir(name)
    if not hosted:
        check_paths((state, model_store))
    if models is None:
        models = registrable(profile) if profile.model_api else {}
    with held():  # until its pid is known
        run_id, tmp_dir = uuid.uuid4().hex, own_tmp_dir(state, kind)
        record = ServerRecord(
            name=name,
            pid=0,
            kind=kind,
            ports=ports,
            profile=profile.name,
            overrides=dict(overrides or {}),
            model_store=model_store.resolve(),
            state_dir=state,
            tmp_dir=tmp_dir,
            run_id=run_id,
            shares=dict(shares or {}),
            cluster=cluster,
            expected=list(expected),
            logged={name: os.environ[name] for name in VARIABLES if name in os.environ},
        )
        try:
            record.save()  # whoever is killed from here on leaves nothing that the next start or stop does not find
            write_config(record, profile, models)
            if hosted:
                record = supervisor.launch(record, environment(record, workers_environment(record, profile)))
            else:
                record = launch(record, profile, java_home(), models, java_options)
            record.save()
            with let_through():
                wait_until_up(record)
        except BaseException as error:
            stop(record)
            if isinstance(error, SlotwiseError) and not hosted:
                java_cache.forget_after_crash(kind, java_home(), state)
            raise
    return record


def wait_until_ended(
    record: ServerRecord, look: Callable[[ServerRecord], ServerRecord] = lambda record: record
) -> ServerRecord:
    """Wait in the foreground until the first signal, which the caller holds (slotwise.interrupts).

    look: called again and again; returns the server that serves now, which is returned in the end. Raises SlotwiseError where
    the server ends by itself.
    """
    while record.alive() and not interrupts.signal_came():
        record = look(record)
        time.sleep(FOREGROUND_POLL_S)
    if not interrupts.signal_came() and is_wanted(record):
        raise SlotwiseError(f"{record.kind} ended by itself", f"its logs are in {record.state_dir / 'logs'}")
    interrupts.settle()
    return record


def successor(record: ServerRecord, *, patient: bool) -> ServerRecord | None:
    """The server that `apply` puts in this one's place, where it does; also one that is still starting.

    patient: wait a moment for it, where nobody but `stop` or `apply` can have ended this one.
    """
    deadline = time.monotonic() + (SUCCESSION_S if patient else 0.0)
    while (found := in_its_place(record)) is None and time.monotonic() < deadline:
        time.sleep(FOREGROUND_POLL_S)
    return found


def check_ours(record: ServerRecord) -> None:
    """Raise SlotwiseError where the server runs as another user, who alone can end it."""
    try:
        if record.alive():
            os.kill(record.pid, 0)
    except ProcessLookupError:
        pass
    except PermissionError:
        message = f"the server {record.name} (pid {record.pid}) is another user's: it runs on"
        raise SlotwiseError(message, "that user, or root, can stop it") from None


def stop(record: ServerRecord, patience_s: float = 0.0) -> None:
    """End the server and every process it started; also where it crashed and left some behind.

    patience_s: so much longer a host of ours may take, for what it still answers. Raises SlotwiseError, and leaves its files as
    they are, where it is another user's or does not end.
    """
    check_ours(record)
    if record.alive():
        _say_stopping(record)
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):  # its folder may be gone: then it is ended without it
            if record.kind in supervisor.HOSTS:
                os.kill(record.pid, signal.SIGTERM)
            else:
                run_start_module(record, ["--stop"])
        end(record.run_id, HOST_STOP_TIMEOUT_S + patience_s if record.kind in supervisor.HOSTS else STOP_TIMEOUT_S)
    end(record.run_id, 0)
    until = time.monotonic() + DYING_S
    while record.alive() and time.monotonic() < until:
        time.sleep(FOREGROUND_POLL_S)
    if record.alive():
        raise SlotwiseError(f"the server {record.name} (pid {record.pid}) does not end: it runs on", "`ps` shows its state")
    if record.kind == "triton":
        triton_process.remove_shared_memory(record.run_id)
    stored = ServerRecord.load(record.state_dir)
    its_own = stored is None or stored.run_id == record.run_id  # else another server of that name has the folder by now
    if its_own or record.tmp_dir.parent != record.state_dir:
        _remove(record.tmp_dir)  # before its record: who is stopped here is found by the next start or stop
    if its_own:
        for leftover in ("server.json", "key_file.json"):
            (record.state_dir / leftover).unlink(missing_ok=True)
        shutil.rmtree(record.state_dir / "workers", ignore_errors=True)
    folder = project.state_root() / record.name  # after a swap another folder than state_dir
    stored = ServerRecord.load(folder)
    if stored is not None and stored.run_id == record.run_id:
        (folder / "server.json").unlink()


def _remove(folder: Path) -> None:
    """Remove a folder; again where something was still being written into it."""
    for _ in range(REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(FOREGROUND_POLL_S)


def _say_stopping(record: ServerRecord) -> None:
    """Write down that it is stopped, so that nobody takes it for stuck and starts it again."""
    for folder in {record.state_dir, project.state_root() / record.name}:
        stored = ServerRecord.load(folder)
        if stored is not None and stored.run_id == record.run_id:
            with contextlib.suppress(OSError):
                dataclasses.replace(stored, stopping=True).save(folder)
