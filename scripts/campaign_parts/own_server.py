"""A TorchServe of a part's own, as `slotwise serve` starts it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import ServerRecord, stop
from slotwise.server.lifecycle import start as start_server


@contextlib.contextmanager
def torchserve(home: Path, store: Path) -> Iterator[ServerRecord]:
    """With nothing registered; `home` is $SLOTWISE_HOME for as long as it runs."""
    before = os.environ.get("SLOTWISE_HOME")
    os.environ["SLOTWISE_HOME"] = str(home)
    try:
        profile = load_profile("cpu", environ={})
        record = start_server("default", "torchserve", profile, model_store=store, ports=Ports.free(), models={})
        try:
            yield record
        finally:
            stop(record)
    finally:
        os.environ.pop("SLOTWISE_HOME")
        if before is not None:
            os.environ["SLOTWISE_HOME"] = before
