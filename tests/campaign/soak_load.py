"""Clients of the `killers` model for a long time: good bodies, bad ones, and now and then one that ends its worker."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import aiohttp

BAD_BODY = b"nonsense "  # and a number
BAD, KILLS = 1 / 20, 1 / 500  # of all requests
TIMEOUT_S = 65.0  # the gateway's deadline and 5 s
IDLE_S = 1.0  # it uses its connections in turn: with longer, as many as a burst needed would stay open for ever
MOST_LISTED = 20
FULL = "requests wait for this model already"  # how our own host refuses a good body of which it keeps too many waiting


@dataclass
class SoakLoad:
    """What was asked, and what came: counts by what was sent and its status; `failures` says (kind, text) of some.

    clients: as many wait for their answers at a time; rate: arrivals a second, whether answers come or not, instead.
    hidden: what no answer may say.
    """

    url: str
    draw: Random
    clients: int = 32
    rate: float | None = None
    hidden: str = ""
    good: Counter[str] = field(default_factory=Counter)
    full: int = 0  # of the good ones: refused because more came than are kept waiting
    bad: Counter[str] = field(default_factory=Counter)
    killers: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)
    over: bool = False

    @property
    def answered(self) -> int:
        """Requests that have had an answer, whatever it was."""
        return self.good.total() + self.bad.total() + self.killers.total()

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Within, the clients ask."""
        thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        thread.start()
        try:
            yield
        finally:
            self.over = True
            thread.join(2 * TIMEOUT_S)
            if thread.is_alive():
                self.failures.append(("hangs", "the clients did not end"))

    async def _run(self) -> None:
        limits = aiohttp.ClientTimeout(total=TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
        async with aiohttp.ClientSession(timeout=limits, connector=connector) as http:
            await (self._closed(http) if self.rate is None else self._open(http, self.rate))

    async def _closed(self, http: aiohttp.ClientSession) -> None:
        numbers = itertools.count()

        async def client() -> None:
            while not self.over:
                await self._ask(http, next(numbers))

        await asyncio.gather(*(client() for _ in range(self.clients)))

    async def _open(self, http: aiohttp.ClientSession, rate: float) -> None:
        due, tasks = time.monotonic(), set[asyncio.Task[None]]()
        for number in itertools.count():
            if self.over:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(self._ask(http, number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due += self.draw.expovariate(rate)
        await asyncio.gather(*tasks)

    async def _ask(self, http: aiohttp.ClientSession, number: int) -> None:
        chance = self.draw.random()
        if chance < KILLS:
            await self._kill(number)
        elif chance < KILLS + BAD:
            status, text = await self._status(http, BAD_BODY + b"%d" % number)
            self._count(self.bad, status, "400", f"a bad body: {status} {text}")
        else:
            status, text = await self._status(http, b"%d" % number)
            right = status == "200" and text == f'{{"answer": {2.0 * number + 1}}}'
            if status == "200" and not right:
                self._fail("wrong", f"{number}: {text}")
            self._count(self.good, status, "200", f"{number}: {status} {text}")

    async def _kill(self, number: int) -> None:
        """From an address of its own: a sender of several such bodies is refused everything for a while."""
        address = f"127.{1 + number // 62500 % 250}.{number // 250 % 250}.{1 + number % 250}"
        connector = aiohttp.TCPConnector(local_addr=(address, 0))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), connector=connector) as http:
            status, text = await self._status(http, b"exit %d" % number)
        self.killers[status] += 1
        if status == "200":
            self._fail("wrong", f"a body that ends its worker: 200 {text}")
        elif status == "timeout":
            self._fail("hangs", f"a body that ends its worker: no answer in {TIMEOUT_S:.0f} s")

    async def _status(self, http: aiohttp.ClientSession, body: bytes) -> tuple[str, str]:
        try:
            async with http.post(f"{self.url}/predictions/killers", data=body) as answer:
                text = await answer.text()
                if self.hidden and self.hidden in text:
                    self._fail("wrong", f"an answer says {self.hidden}: {answer.status} {text[:200]}")
                return str(answer.status), text[:200]
        except TimeoutError:
            return "timeout", ""
        except (aiohttp.ClientError, OSError) as error:
            return "connection", repr(error)

    def _count(self, counts: Counter[str], status: str, due: str, text: str) -> None:
        """Count an answer; anything but what is due, or a refusal because too many wait, is a failure."""
        counts[status] += 1
        full = status == "429" or (status == "503" and FULL in text)
        self.full += full and counts is self.good
        if status != due and not full:
            kind = "hangs" if status == "timeout" else "lost" if counts is self.good else "unplanned"
            self._fail(kind, text)

    def _fail(self, kind: str, text: str) -> None:
        self.failures.append((kind, text if len(self.failures) < MOST_LISTED else ""))
