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

from slotwise.frontend.process import GatewayRecord
from tests.support.gateways import gateway_before

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
    def front(self, home: Path, *options: str) -> Iterator[GatewayRecord]:
        """A gateway process before it; at its end the stand-in is down."""
        (home / "default").mkdir()
        self.server.record(home / "default").save()
        try:
            with gateway_before(home, "default", *options) as record:
                yield record
        finally:
            self.down()


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
    """A gateway process with gRPC."""
    server = StandInThread()
    with server.front(home, "--grpc-port", "0", *options) as record:
        yield LiveFront(record, server.server)
