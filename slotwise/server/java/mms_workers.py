"""Find out what MMS does not say of its workers: their pids, and whether they have really loaded their model.

MMS calls every worker READY from the first moment, also one that dies again and again, and names no pids. But a worker that
has loaded its model writes to the pipe `$TEMP/CHANNEL-stdout` from then on: its open files say both. The end of a worker's
id is the end of its channel's name: worker 9000-1a89b442-342f15c7 writes to 02fc...-342f15c7-stdout.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from slotwise.server.processes import processes_of

if TYPE_CHECKING:
    from slotwise.server.lifecycle import ServerRecord


def loaded_workers(record: ServerRecord) -> dict[str, int]:
    """The pid of every worker that has loaded its model, by the end of the worker's id."""
    pids: dict[str, int] = {}
    for process in processes_of(record.run_id):
        try:
            stdout = Path(os.readlink(f"/proc/{process.pid}/fd/1"))
        except OSError:
            continue
        if stdout.parent == record.tmp_dir.resolve() and stdout.name.endswith("-stdout"):
            pids[id_end(stdout.name.removesuffix("-stdout"))] = process.pid
    return pids


def id_end(id_: str) -> str:
    """The last part of a worker's id, which is also the last part of its channel's name."""
    return id_.rpartition("-")[2]
