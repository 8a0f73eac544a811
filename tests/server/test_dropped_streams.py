"""Streams that clients drop at any point, and clients that never read: nobody else notices, and nothing is kept."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.backends.streaming_models import GENERATOR, streaming_archive
from tests.server.conftest import Live, started
from tests.support.seed import SEED
from tests.support.waiting import until

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

PATIENCE_S, MIB = 240.0, 1 << 20
AT_ONCE = 16
KEPT_MIB = 96  # of a process, beside what it had: its allocator's, threads' stacks, buffers of the sockets
UNREAD = '[1000000, "large"]'  # 100 kB a piece
CUT_OFF = "slotwise_cut_off_readers_total"
DROPPED = ("[3]", '[200, "slow"]', '[40, "large"]', '[9, "raise", 4]', "[]", "no JSON")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("store")
    streaming_archive(tmp_path_factory.mktemp("models"), "words", GENERATOR, store)
    with started("slotwise", tmp_path_factory.mktemp("home"), store, response_timeout_s="240") as live:
        live.management.register("words.mar", batch_size=4, initial_workers=1)
        live.management.wait_ready("words", 1)
        yield live


class Clients:
    """Clients of one host, over sockets of their own."""

    def __init__(self, live: Live) -> None:
        self.port, self.random = live.record.ports.inference, random.Random(SEED)
        self.head = "".join(f"{name}: {value}\r\n" for name, value in live.inference_headers().items())

    def request(self, body: str) -> bytes:
        head = f"POST /predictions/words HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n{self.head}"
        return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    async def drop_one(self) -> None:
        """Send a request, or some of it, read some of its answer, or nothing, and leave in one of two ways."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        request = self.request(self.random.choice(DROPPED))
        writer.write(request[: self.random.choice([len(request), len(request), self.random.randrange(len(request))])])
        for _ in range(self.random.choice([0, 1, 5, 50])):
            try:
                async with asyncio.timeout(self.random.random() / 5):
                    await reader.read(self.random.choice([1, 100, 100_000]))
            except (TimeoutError, ConnectionError):
                break
        if self.random.random() < 0.5:
            writer.close()
        else:
            writer.transport.abort()

    async def drop(self, count: int) -> None:
        """So many of them, some at once."""
        places = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with places:
                await self.drop_one()

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(one())

    def unread(self) -> socket.socket:
        """A client that never reads."""
        client = socket.create_connection(("127.0.0.1", self.port))
        client.sendall(self.request(UNREAD))
        return client


async def right_answers(live: Live, until: asyncio.Event) -> int:
    """Ask as anybody does until then; how often. Each answer is looked at."""
    count = 0
    url, headers = live.record.inference_url, live.inference_headers()
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE_S, trust_env=False) as client:
        while not until.is_set():
            n = count % 4 + 1
            words = [f"word{i} " for i in range(n)]
            whole = await client.post("/predictions/words", content=f"[{n}]")
            assert (whole.status_code, whole.text) == (200, "".join(words))
            streamed = await client.post("/predictions/words", content=f"[{n}]", headers={"accept": "text/event-stream"})
            events = [f'data: {{"text": "{word}"}}' for word in words]
            assert streamed.text == "\n\n".join([*events, f'event: end\ndata: {{"pieces": {n}}}', ""])
            count += 1
    return count


def metrics(live: Live) -> dict[str, float]:
    """The host's numbers, without labels: there is one model."""
    lines = httpx.get(f"{live.record.metrics_url}/metrics", timeout=PATIENCE_S, trust_env=False).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#") and "_bucket" not in line)
    return {name.partition("{")[0]: float(value) for name, value in pairs}


@pytest.mark.parametrize(("drops", "unread"), [(60, 4), pytest.param(1000, 50, marks=pytest.mark.long)])
def test_who_drops_or_does_not_read_costs_nobody_anything(live: Live, drops: int, unread: int) -> None:
    clients = Clients(live)
    processes = [psutil.Process(pid) for pid in (live.record.pid, *live.pids("words"))]

    async def storm(drops: int, unread: int) -> int:
        over = asyncio.Event()
        asking = asyncio.create_task(right_answers(live, over))
        cut = metrics(live).get(CUT_OFF, 0)
        silent = [clients.unread() for _ in range(unread)]
        try:
            await clients.drop(drops)
            async with asyncio.timeout(PATIENCE_S):
                while metrics(live).get(CUT_OFF, 0) - cut < unread and not asking.done():
                    await asyncio.sleep(0.2)
        finally:
            for one in silent:
                one.close()
            over.set()
        return await asking

    def at_rest() -> bool:
        numbers = metrics(live)
        names = ("slotwise_host_open_requests", "slotwise_open_streams", "slotwise_gateway_memory_bytes")
        return not any(numbers[name] for name in names)

    asyncio.run(storm(AT_ONCE, 1))  # what is kept after the first ones, is kept
    until(at_rest, "the host is not at rest")
    before = [process.memory_info().rss for process in processes]
    assert asyncio.run(storm(drops, unread)) > 0
    until(at_rest, "the host is not at rest")
    grown = [process.memory_info().rss - was for process, was in zip(processes, before, strict=True)]
    assert max(grown) < KEPT_MIB * MIB, grown
    assert live.pids("words") == [process.pid for process in processes[1:]]
