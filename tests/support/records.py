"""Records of servers that nobody has started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotwise.profiles.ports import Ports
from slotwise.server.record import Kind, ServerRecord


def server_record(folder: Path, kind: Kind = "torchserve", **changes: Any) -> ServerRecord:
    """The record of a server that has everything in this folder. changes: what else stands in it than usual."""
    usual = {
        "name": "default",
        "pid": 1,
        "ports": Ports(),
        "profile": "cpu",
        "overrides": {},
        "model_store": folder,
        "state_dir": folder,
        "tmp_dir": folder,
        "run_id": "run",
    }
    return ServerRecord(kind=kind, **{**usual, **changes})
