"""A second node of Ray on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from slotwise.server.processes import processes_of
from slotwise.server.record import ServerRecord

RAY_ON_LOOPBACK = """
from ray.scripts.scripts import main
from slotwise.server.ray.cluster import stay_on_loopback
stay_on_loopback()
main()
"""
JOIN_S = 300.0


@contextmanager
def second_node(record: ServerRecord) -> Iterator[None]:
    """A second raylet on this machine, at another loopback address; `stop` of the server finds it by its environment."""
    address = (record.state_dir / "ray_address").read_text()
    command = [sys.executable, "-c", RAY_ON_LOOPBACK, "start", f"--address={address}", "--node-ip-address=127.0.0.2"]
    command += ["--num-cpus=2", "--disable-usage-stats", "--dashboard-agent-listen-port=0", "--object-store-memory=200000000"]
    supervisor = psutil.Process(record.pid).environ()
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(record.state_dir / "ray_token")}
    environ = {**os.environ, **supervisor, **own, "RAY_worker_register_timeout_seconds": str(round(JOIN_S))}
    subprocess.run(command, env=environ, check=True, capture_output=True, timeout=JOIN_S, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        for process in processes_of(record.run_id):
            if on_second_node(process):
                process.kill()


def on_second_node(process: psutil.Process) -> bool:
    """Whether it is the second node's raylet."""
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return bool(command) and command[0].endswith("raylet") and "--node_ip_address=127.0.0.2" in command
