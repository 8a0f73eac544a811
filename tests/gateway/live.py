"""A gateway process in front of a stand-in server that runs in a thread, for tests that are not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slotwise.gateway import process
from slotwise.gateway.process import GatewayRecord

from .standin import StandIn


class StandInThread:
    """A stand-in server which can go down and come back on the same port."""

    def __init__(self, **settings: Any) -> None:
        self.server = StandIn(**settings)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.up()

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def up(self) -> None:
        """Listen."""
        self._run(self.server.__aenter__())

    def down(self) -> None:
        """Refuse connections, and cut those that are open."""
        self._run(self.server.stop())


@contextmanager
def gateway_before(server: StandInThread, home: Path, *options: str) -> Iterator[GatewayRecord]:
    """A gateway process; `home` is its $SLOTWISE_HOME for as long as it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTWISE_HOME", str(home))
        (home / "default").mkdir()
        server.server.record(home / "default").save()
        try:
            usual = ["--port", "0", "--translation-port", "-1", "--drain-delay-s", "0"]
            yield process.start_detached("default", [*usual, *options])
        finally:
            process.stop()
            server.down()
