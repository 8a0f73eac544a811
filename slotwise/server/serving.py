"""A server in the foreground: Ctrl-C, a termination and a closed terminal all end it in order."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.server.lifecycle import ServerRecord

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, the first signal to end raises KeyboardInterrupt; further ones do not disturb the stopping."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def until_it_ends(record: ServerRecord) -> None:
    """Return at the first signal. Raises SlotwiseError where the server ends by itself."""
    from slotwise.server.lifecycle import running

    try:
        while record.alive():
            time.sleep(0.3)
    except KeyboardInterrupt:
        return
    if running(record.name) is None and (record.state_dir / "server.json").exists():
        raise SlotwiseError(f"{record.kind} ended by itself", f"its logs are in {record.state_dir / 'logs'}")
