"""A request that ends its worker, under load, in front of both real servers: nobody else loses anything."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
import httpx
import pytest

from slotwise.gateway.process import GatewayRecord

from .conftest import Live

pytestmark = [pytest.mark.server, pytest.mark.timeout(400)]

CLIENTS = 32
WORKERS = 2


@dataclass
class Storm:
    """Innocent clients ask until the killers have been answered; `lost` is what they did not get."""

    url: str
    killers: list[bytes]
    right: int = 0
    lost: list[str] = field(default_factory=list)
    refused: list[list[int]] = field(default_factory=list)
    over: bool = False

    async def run(self) -> None:
        """Load, a few killers in it, and some load afterwards."""
        numbers = itertools.count()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90)) as http:
            innocents = [asyncio.create_task(self._innocent(http, numbers)) for _ in range(CLIENTS)]
            await self._more(100)
            for body in self.killers:
                self.refused.append([await self._status(http, body) for _ in range(4)])
                await self._more(100)
            self.over = True
            await asyncio.gather(*innocents)

    async def _more(self, count: int) -> None:
        wanted = self.right + count
        while self.right < wanted and len(self.lost) < 100:
            await asyncio.sleep(0.02)

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


def test_bodies_that_end_workers_cost_nobody_else_anything(live: Live, front: GatewayRecord) -> None:
    file = live.record.state_dir / "deaths.txt"
    file.unlink(missing_ok=True)
    with live.registered("killers", max_batch_delay=20, initial_workers=WORKERS):
        while "killers" not in {model["name"] for model in front.status()["models"] if model["ready_workers"]}:
            time.sleep(0.2)
        storm = Storm(front.url, [b"exit 1", b"segfault 2"])
        asyncio.run(storm.run())
        metrics = httpx.get(f"{front.url}/metrics").text
    assert storm.lost == []
    assert storm.refused == [[500, 422, 422, 422]] * 2
    deaths = Counter(file.read_text().splitlines())
    assert set(deaths) == {"exit 1", "segfault 2"}
    assert max(deaths.values()) <= 2
    assert 'slotwise_killers_total{model="killers"} 2.0' in metrics
