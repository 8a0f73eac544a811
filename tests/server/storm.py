"""Innocent clients of the `killers` model, every answer checked; in their midst, bodies that end workers."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp
import httpx

PAUSE_S = 0.02


@dataclass
class Storm:
    """Innocent clients ask until the killers have been answered; `lost` is what they did not get."""

    url: str
    killers: list[bytes]
    clients: int = 32
    right: int = 0
    lost: list[str] = field(default_factory=list)
    refused: list[list[int]] = field(default_factory=list)
    over: bool = False

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Within, the clients ask."""
        thread = threading.Thread(target=lambda: asyncio.run(self._load()))
        thread.start()
        try:
            yield
        finally:
            self.over = True
            thread.join(320)
            assert not thread.is_alive(), "a request hangs"

    def wait_for(self, more: int, patience_s: float = 300) -> None:
        """Return after `more` further right answers."""
        wanted, deadline = self.right + more, time.monotonic() + patience_s
        while self.right < wanted:
            assert time.monotonic() < deadline, f"only {self.right} of {wanted} answers came; lost: {self.lost[:3]}"
            time.sleep(PAUSE_S)

    def try_killer(self, body: bytes, times: int) -> list[int]:
        """The statuses of a body that ends workers, sent one time after the other; from another thread."""
        transport = httpx.HTTPTransport(local_address="127.0.0.2")  # its own, for senders of such bodies are refused
        with httpx.Client(timeout=300, trust_env=False, transport=transport) as http:
            return [http.post(f"{self.url}/predictions/killers", content=body).status_code for _ in range(times)]

    async def _load(self) -> None:
        numbers = itertools.count()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
            innocents = [asyncio.create_task(self._innocent(http, numbers)) for _ in range(self.clients)]
            for body in self.killers:
                await self._more(100)
                self.refused.append([await self._status(http, body) for _ in range(4)])
            if self.killers:
                await self._more(100)
                self.over = True
            await asyncio.gather(*innocents)

    async def _more(self, count: int) -> None:
        wanted = self.right + count
        while self.right < wanted and len(self.lost) < 100:
            await asyncio.sleep(PAUSE_S)

    async def _status(self, http: aiohttp.ClientSession, body: bytes) -> int:
        async with http.post(f"{self.url}/predictions/killers", data=body) as answer:
            await answer.read()
            return answer.status

    async def _innocent(self, http: aiohttp.ClientSession, numbers: itertools.count[int]) -> None:
        while not self.over:
            number = next(numbers)
            try:
                async with http.post(f"{self.url}/predictions/killers", data=b"%d" % number) as answer:
                    text = await answer.text()
                    if answer.status == 200 and (await answer.json()) == {"answer": 2.0 * number + 1}:
                        self.right += 1
                    else:
                        self.lost.append(f"{answer.status} {text}")
            except (aiohttp.ClientError, OSError) as error:
                self.lost.append(repr(error))
            await asyncio.sleep(0.02)
