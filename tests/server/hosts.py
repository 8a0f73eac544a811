"""Several hosts on one machine: a network namespace each, wired to one more where the balancer and the clients are.

    front --- veth --- host 1   10.213.1.2   slotwise serve, slotwise gateway
          --- veth --- host 2   10.213.2.2   the same
          --- veth --- host 3   10.213.3.2   the same

Needs root and iproute2. Names carry this process's id; `close` ends the processes within and removes the namespaces.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

FRONT = f"slotwise-{os.getpid()}-front"
SERVER_END_S, GATEWAY_END_S = 90.0, 90.0


def ip(*arguments: str) -> None:
    """Run `ip`; CalledProcessError where it fails."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=60)


def why_not() -> str | None:
    """Why this machine cannot play several hosts; None where it can."""
    missing = [tool for tool in ("ip", "haproxy") if shutil.which(tool) is None]
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if missing:
        return f"{' and '.join(missing)} is not here (apt-get install iproute2 haproxy)"
    try:
        ip("netns", "add", FRONT)
        ip("netns", "del", FRONT)
    except subprocess.CalledProcessError as error:
        return f"no network namespace can be made: {error.stderr.strip()}"
    return None


def within(namespace: str, command: list[str], **options: object) -> subprocess.Popen[str]:
    """Start a command in a namespace."""
    return subprocess.Popen(["ip", "netns", "exec", namespace, *command], text=True, start_new_session=True, **options)  # type: ignore[call-overload,no-any-return]


@dataclass
class Host:
    """One host: its namespace, its folder, and what runs there."""

    number: int
    folder: Path
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return f"slotwise-{os.getpid()}-{self.number}"

    @property
    def address(self) -> str:
        return f"10.213.{self.number}.2"

    def make(self) -> None:
        """The namespace and its wire."""
        wire, front = f"host{self.number}", f"10.213.{self.number}.1"
        ip("netns", "add", self.namespace)
        ip("link", "add", wire, "netns", FRONT, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        for namespace, device, address in ((FRONT, wire, front), (self.namespace, "eth0", self.address)):
            ip("-n", namespace, "address", "add", f"{address}/30", "dev", device)
            ip("-n", namespace, "link", "set", device, "up")
        ip("-n", self.namespace, "link", "set", "lo", "up")

    def start(self, command: str, *arguments: str) -> None:
        """Start a slotwise command; its output goes to a file of the folder."""
        environment = {**os.environ, "SLOTWISE_HOME": str(self.folder / "state")}
        with (self.folder / f"{command}.log").open("a") as log:
            self.processes[command] = within(
                self.namespace,
                [sys.executable, "-m", "slotwise.cli", command, *arguments],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def up(self) -> None:
        """Start server and gateway; both take a while."""
        self.start("serve", "digits")
        self.start("gateway", "--host", "0.0.0.0")

    def down(self) -> None:
        """Stop as an update would: the gateway finishes what is in flight, then the server ends."""
        for command, patience_s in (("gateway", GATEWAY_END_S), ("serve", SERVER_END_S)):
            process = self.processes.pop(command)
            process.terminate()
            assert process.wait(patience_s) in (0, -signal.SIGTERM), (self.folder / f"{command}.log").read_text()[-2000:]

    def kill(self) -> None:
        """kill -9 for every process of the host, at once."""
        found = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True, timeout=60)
        for pid in map(int, found.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait(60)
        self.processes.clear()

    def black_hole(self) -> None:
        """Nothing that the host sends arrives any more; nobody is told."""
        ip("-n", self.namespace, "route", "add", "blackhole", f"10.213.{self.number}.1/32")

    def heal(self) -> None:
        """The wire works again."""
        ip("-n", self.namespace, "route", "del", "blackhole", f"10.213.{self.number}.1/32")

    def close(self) -> None:
        """End what still runs and remove the namespace."""
        with contextlib.suppress(subprocess.CalledProcessError, psutil.Error):
            self.kill()
        for record in (self.folder / "state").glob("*/server.json"):  # a server that is killed leaves its folder for sockets
            shutil.rmtree(json.loads(record.read_text("utf-8"))["tmp_dir"], ignore_errors=True)
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, capture_output=True, timeout=60)
