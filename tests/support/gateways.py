"""A gateway process, for as long as a test wants it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slotwise.frontend import process
from slotwise.frontend.process import GatewayRecord

USUAL = ("--port", "0", "--translation-port", "-1", "--drain-delay-s", "0")


@contextmanager
def gateway_before(home: Path, name: str, *options: str) -> Iterator[GatewayRecord]:
    """A gateway before the server whose record is in `home`/`name`. Of two options of a kind the last one counts.

    `home` is $SLOTWISE_HOME only while it is started and stopped.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTWISE_HOME", str(home))
        record = process.start_detached(name, ["--name", name, *USUAL, *options])
    try:
        yield record
    finally:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLOTWISE_HOME", str(home))
            process.stop(name)
