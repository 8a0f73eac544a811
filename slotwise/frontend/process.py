"""Find, start and stop a gateway's process: `.slotwise/NAME/gateway.json` says where it listens and which process it is."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.interrupts import held, let_through, settle
from slotwise.server.process_record import ProcessRecord
from slotwise.server.processes import start_time

log = logging.getLogger("slotwise.gateway")

START_TIMEOUT_S = 180.0
STOP_GRACE_S = 5.0
BUSY, TRIES, AGAIN_S = 429, 10, 1.0


@dataclass(frozen=True, kw_only=True)
class GatewayRecord(ProcessRecord):
    """A gateway in front of the server `name`. drain_s: how long it may take after SIGTERM, to finish what is in flight.

    key: what opens its /status, where keys or certificates are asked for. certificate: of its own TLS, "" where it has none.
    grpc: host and port of its gRPC, "" where it has none. keeper: the pid of the process that starts it again where it dies,
    0 where there is none; keeper_started: as `started`. handover: where a successor asks for its sockets, "" where it cannot.
    options: what it was started with.
    """

    url: str
    drain_s: float
    key: str = ""
    certificate: str = ""
    grpc: str = ""
    keeper: int = 0
    keeper_started: float | None = None
    handover: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_this_process(cls, *, keeper: int, **about: Any) -> GatewayRecord:
        """The record of the process that this code runs in. about: what else stands in it."""
        pid = os.getpid()
        return cls(pid=pid, started=start_time(pid), keeper=keeper, keeper_started=start_time(keeper), **about)

    def alive(self) -> bool:
        """Whether it runs, or is just started again."""
        return super().alive() or self.kept

    @property
    def kept(self) -> bool:
        """Whether its keeper runs."""
        return self.keeper_started is not None and start_time(self.keeper) == self.keeper_started

    @property
    def grpc_port(self) -> int:
        """The port of its gRPC; -1 where it has none."""
        return int(self.grpc.rpartition(":")[2]) if self.grpc else -1

    @property
    def page(self) -> str:
        """The address of the page."""
        return f"{self.url}/index.html"

    def listening(self) -> str:
        """Where it listens, for people."""
        return f"page: {self.page}" + (f"\ngrpc: {self.grpc}" if self.grpc else "")

    def status(self) -> dict[str, Any]:
        """Its GET /status. Raises SlotwiseError where it does not answer."""
        return self.asked("/status")

    def asked(self, path: str) -> dict[str, Any]:
        """What it says at that path. Raises SlotwiseError where it does not answer, or says no."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return asked(f"{self.url}{path}", headers, self._trusted())

    def _trusted(self) -> ssl.SSLContext | bool:
        """For TLS: its very certificate, whatever name stands in it, for here it is 127.0.0.1."""
        if not self.certificate:
            return True
        context = ssl.create_default_context(cafile=self.certificate)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    def save(self, restarts: int = 0) -> None:
        """Write gateway.json. restarts: how many died before this one; where the disk is full by then, it goes on without."""
        file = _file(self.name)
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.write(file)
        except OSError as error:
            if not restarts:
                raise
            log.error("gateway.json cannot be written, and names the one before: %s", error.strerror)

    def forget(self) -> None:
        """Remove gateway.json, unless it is another gateway's by now."""
        if GatewayRecord.load(self.name) == self:
            _file(self.name).unlink(missing_ok=True)

    @classmethod
    def load(cls, name: str) -> GatewayRecord | None:
        """The record in gateway.json; None where there is none or it cannot be read."""
        return cls.read(_file(name))


def _file(name: str) -> Path:
    return project.state_root() / name / "gateway.json"


def asked(url: str, headers: Mapping[str, str], trusted: ssl.SSLContext | bool = True) -> dict[str, Any]:
    """The JSON at this address. Raises SlotwiseError, with what was answered where it is a refusal.

    Where it has too much to do (429), which passes, it is asked again for some seconds.
    """
    import httpx  # noqa: PLC0415  slow to import

    try:
        for left in reversed(range(TRIES)):
            answer = httpx.get(url, headers=dict(headers), timeout=30, trust_env=False, verify=trusted)
            if answer.status_code != BUSY or not left:
                break
            time.sleep(AGAIN_S)
        said: dict[str, Any] = answer.json()
        if answer.is_error:
            error = said.get("error", said.get("detail"))
            raise SlotwiseError(str(error.get("message") if isinstance(error, dict) else error))
    except (httpx.HTTPError, OSError, ValueError, AttributeError) as error:
        raise SlotwiseError(f"the gateway at {url} does not answer: {error}") from error
    return said


def running(name: str = "default") -> GatewayRecord | None:
    """The gateway in front of the server `name`, where one runs."""
    record = GatewayRecord.load(name)
    return record if record is not None and record.alive() else None


def already_running(record: GatewayRecord) -> SlotwiseError:
    """The error of who would start another one."""
    return SlotwiseError(
        f"a gateway for {record.name!r} is already running at {record.url}",
        "--replace has this one take its place; `slotwise stop` ends it and the server",
    )


def check_takes_effect(record: GatewayRecord, options: dict[str, Any]) -> None:
    """Raise SlotwiseError for an option that the running gateway was started without: it would be ignored."""
    others = sorted(f"--{key.replace('_', '-')}" for key, value in options.items() if record.options.get(key) != value)
    if others:
        raise SlotwiseError(
            f"a gateway for {record.name!r} is already running at {record.url}, without this {', '.join(others)}",
            "--replace has one with these options take its place: no request is lost",
        )


def was_up(name: str, pid: int) -> bool:
    """Whether the gateway with this pid has listened."""
    record = GatewayRecord.load(name)
    return record is not None and record.pid == pid


def stop(name: str = "default") -> bool:
    """End the gateway in front of the server `name`, letting it finish what is in flight. False where none runs."""
    record = running(name)
    if record is None:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(record.keeper if record.kept else record.pid)
        children = process.children()
        process.terminate()
        try:
            process.wait(record.drain_s + STOP_GRACE_S)
        except psutil.TimeoutExpired:
            for one in (process, *children):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.wait(30)
    left = GatewayRecord.load(name)
    if left is not None and not left.alive():  # else another one has taken its place meanwhile
        left.forget()
    return True


def start_detached(name: str, arguments: list[str]) -> GatewayRecord:
    """Start `slotwise gateway ARGUMENTS` on its own and wait until it answers; its output goes to gateway.log.

    Where it takes another one's place it writes behind that one, which goes on for a while.
    """
    log = project.state_dir(name) / "gateway.log"
    if running(name) is None:
        log.write_bytes(b"")
    with held(), log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "slotwise.cli", "gateway", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            with let_through():
                record = _wait_until_it_answers(name, process)
            if record is not None:
                settle()
                return record
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.poll() is None:
        process.kill()
    lines = [line for line in log.read_bytes()[begin:].decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    reason = (errors[:1] or lines[-1:] or ["no output"])[0]
    raise SlotwiseError(f"the gateway did not start: {reason}", (hints[:1] or [f"its output is in {log}"])[0])


def _wait_until_it_answers(name: str, process: subprocess.Popen[bytes]) -> GatewayRecord | None:
    """The gateway's record, once it answers; None where it ends or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        record = running(name)
        if record is not None and record.keeper == process.pid:
            with contextlib.suppress(SlotwiseError):
                record.status()
                return record
        time.sleep(0.05)
    return None
