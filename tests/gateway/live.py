"""A gateway process in front of a stand-in server that runs in a thread, for tests that are not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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


@dataclass
class LiveFront:
    """A gateway process that many tests share, and the stand-in behind it; they leave both as they found them."""

    record: GatewayRecord
    server: StandIn

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens for HTTP."""
        parts = urlsplit(self.record.url)
        return str(parts.hostname), int(parts.port or 0)


@contextmanager
def shared_front(home: Path, *options: str) -> Iterator[LiveFront]:
    """A gateway process with gRPC; $SLOTWISE_HOME is its `home` only while it is started and stopped."""
    server = StandInThread()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTWISE_HOME", str(home))
        (home / "default").mkdir()
        server.server.record(home / "default").save()
        usual = ["--port", "0", "--translation-port", "-1", "--grpc-port", "0", "--drain-delay-s", "0"]
        record = process.start_detached("default", [*usual, *options])
    try:
        yield LiveFront(record, server.server)
    finally:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLOTWISE_HOME", str(home))
            process.stop()
        server.down()


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
