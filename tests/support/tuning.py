"""`slotwise tune` on a running server, and what it must leave as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.server.conftest import Live

BODY = b"x"


def tuner(live: Live, out: Path, *options: str) -> subprocess.Popen[str]:
    """`slotwise tune` on that server, in a process group of its own."""
    body = out / "body"
    body.write_bytes(BODY)
    given = ["--name", live.record.name, "--body", str(body), "--out", str(out), "--seconds", "0.4", "--clients", "8"]
    return subprocess.Popen(
        [sys.executable, "-m", "slotwise.cli", "tune", str(live.record.model_store / "standin.mar"), *given, *options],
        env={**os.environ, "SLOTWISE_HOME": str(live.record.state_dir.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def state(live: Live) -> tuple[Any, ...]:
    """All that the server has: its models with their settings, the pids of their workers, the archives."""
    described = [live.management.describe(model.name) for model in live.management.list()]
    kept = [(m.name, m.batch_size, m.max_batch_delay, sorted(w.pid for w in m.workers)) for m in described]
    return kept, sorted(file.name for file in live.record.model_store.glob("*.mar"))
