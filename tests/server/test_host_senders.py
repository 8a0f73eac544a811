"""Senders that want more than their share, at our own host behind a gateway with keys, with real processes."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import httpx
import pytest

from slotwise.frontend.admission import keys
from slotwise.frontend.process import GatewayRecord
from tests.server.conftest import Live, started

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(600)]

LASTS_S = 8.0
SENDERS = {"flood": (1, 0), "boss": (100, 9), "honest": (1, 0), "last": (1, -9), "quitter": (1, 0), "hasty": (1, 0)}
MANY = {"flood": 256, "boss": 64, "quitter": 32, "hasty": 8}  # requests under way at once
COMERS = 50  # keys that others take the place of
OPEN = "slotwise_host_open_requests{"


@pytest.fixture(scope="module", params=["free", "auto"])
def live(request: pytest.FixtureRequest, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with started("slotwise", tmp_path_factory.mktemp("senders"), store, linger=request.param, latency_p99_ms="50") as server:
        server.management.register("killers.mar", batch_size=8, max_batch_delay=5, initial_workers=2, response_timeout=60)
        server.management.wait_ready("killers", 2)
        yield server


@dataclass
class Attack:
    """All of them, for LASTS_S. said: what each was answered."""

    url: str
    shown: dict[str, str]
    said: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in (*SENDERS, "comer")})

    def __post_init__(self) -> None:
        self.numbers, self.until = itertools.count(1), time.monotonic() + LASTS_S

    async def ask(self, http: aiohttp.ClientSession, name: str, key: str, timeout_s: float = 60.0, **headers: str) -> None:
        """One request, whose answer has to be its own."""
        number = next(self.numbers)
        said = self.said[name]
        try:
            limit = aiohttp.ClientTimeout(total=timeout_s)
            shown = {"x-api-key": key, **headers}
            path = "/predictions/killers"
            async with http.post(path, data=b"%d" % number, headers=shown, timeout=limit) as answer:
                text = await answer.text()
                right = answer.status != 200 or json.loads(text) == {"answer": 2.0 * number + 1}
                said[str(answer.status) if right else f"another's: {text}"] += 1
        except TimeoutError:
            said["left"] += 1

    async def client(self, http: aiohttp.ClientSession, name: str) -> None:
        """One request after the other."""
        while time.monotonic() < self.until:
            late = {"x-deadline-ms": str(int(time.time() * 1000) + 20)} if name == "hasty" else {}
            await self.ask(http, name, self.shown[name], 0.01 if name == "quitter" else 60.0, **late)
            await asyncio.sleep(0.02 if name in ("honest", "last") else 0)

    async def comers(self, http: aiohttp.ClientSession, file: Path) -> None:
        """Keys that are there for a second or two, and others then."""
        lasting = json.loads(file.read_text())["keys"]
        for i in itertools.count():
            if time.monotonic() >= self.until:
                break
            new = {f"comer{i}-{j}": f"a key of {i} and {j}" for j in range(COMERS)}
            entries = [{"name": name, "sha256": keys._sha256(key), "requests_per_s": 5} for name, key in new.items()]
            file.write_text(json.dumps({"keys": [*lasting, *entries]}))
            await asyncio.sleep(1.5 * keys.LOOK_AGAIN_S)
            await asyncio.gather(*(self.ask(http, "comer", key) for key in new.values()))

    async def run(self, file: Path) -> None:
        """Let all of them ask."""
        unlimited = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self.url, connector=unlimited) as http:
            clients = [self.client(http, name) for name in SENDERS for _ in range(MANY.get(name, 1))]
            await asyncio.gather(self.comers(http, file), *clients)


def balance(front: GatewayRecord, key: str) -> list[float]:
    """How many requests have not ended, of each model."""
    text = httpx.get(f"{front.url}/metrics", headers={"x-api-key": key}).text
    return [float(line.split()[-1]) for line in text.splitlines() if line.startswith(OPEN)]


def test_nobody_starves_and_each_gets_its_own_answer_whatever_others_send(live: Live, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    shown = {name: keys.add(file, name, (), 0.0, 0.0, *share) for name, share in SENDERS.items()}
    with live.front("--keys", str(file)) as front:
        attack = Attack(front.url, shown)
        asyncio.run(attack.run(file))
        said = attack.said
        for name in ("honest", "last"):
            assert set(said[name]) == {"200"}, said
        assert set(said["comer"]) <= {"200", "429"}, said  # more senders than may have a place lent
        assert said["comer"]["200"], said
        for name in ("flood", "boss"):
            assert set(said[name]) <= {"200", "429", "503"}, said
            assert said[name]["200"], said
        assert set(said["hasty"]) <= {"200", "429", "503", "504"}, said
        assert set(said["quitter"]) <= {"left", "200", "429", "503"}, said
        deadline = time.monotonic() + 30
        while any(balance(front, shown["honest"])) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert balance(front, shown["honest"])
        assert not any(balance(front, shown["honest"]))
