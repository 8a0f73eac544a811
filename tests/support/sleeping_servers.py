"""Processes that stand for servers: they sleep, have a record each, and are all ended at the end."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slotwise.files import project
from slotwise.profiles.ports import Ports
from slotwise.server.lifecycle import Kind, ServerRecord
from slotwise.server.processes import MARK, start_time
from tests.support.records import server_record

Start = Callable[[str, Ports], ServerRecord]


@contextmanager
def sleeping_servers(kind: Kind) -> Iterator[Start]:
    """Gives what starts one of this name. Its run's id is its own: whoever ends it ends nobody else's processes."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, ports: Ports) -> ServerRecord:
        run_id, folder = uuid.uuid4().hex, project.state_dir(name)
        started.append(subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: run_id}))
        pid = started[-1].pid
        about = {"name": name, "pid": pid, "started": start_time(pid), "run_id": run_id}
        record = server_record(folder, kind, ports=ports, tmp_dir=folder / "tmp", **about)
        record.tmp_dir.mkdir(exist_ok=True)
        record.save()
        return record

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()
