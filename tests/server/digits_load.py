"""A steady load of digits through a gateway, every answer checked: who was lost, who got a wrong answer."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import aiohttp

from slotwise.files.project import model_folder


def digits() -> dict[str, bytes]:
    """The example pictures by their label."""
    return {file.stem: file.read_bytes() for file in sorted(Path(model_folder("digits") / "examples").glob("*.png"))}


@dataclass
class Steady:
    """`clients` ask one after the other, with a pause, for as long as the context lasts."""

    url: str
    clients: int = 8
    pause_s: float = 0.05
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def __enter__(self) -> Steady:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(320)
        assert not self._thread.is_alive(), "a request hangs"

    def wait_for(self, more: int, patience_s: float = 300) -> None:
        """Return after `more` further right answers."""
        wanted = self.right + more
        for _ in range(int(patience_s / 0.02)):
            if self.right >= wanted:
                return
            self._stop.wait(0.02)
        raise AssertionError(f"only {self.right} of {wanted} answers came; lost: {self.lost[:3]}")

    async def _run(self) -> None:
        bodies = digits()
        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            await asyncio.gather(*[self._client(http, bodies, i) for i in range(self.clients)])

    async def _client(self, http: aiohttp.ClientSession, bodies: dict[str, bytes], first: int) -> None:
        labels = sorted(bodies)
        while not self._stop.is_set():
            label = labels[first % len(labels)]
            first += 1
            try:
                async with http.post(f"{self.url}/predictions/digits", data=bodies[label]) as answer:
                    text = await answer.text()
                    self.statuses[answer.status] += 1
                    if answer.status != 200:
                        self.lost.append(f"{answer.status} {text}")
                    elif (await answer.json())["label"] != label:
                        self.wrong.append(f"{label}: {text}")
                    else:
                        self.right += 1
            except (aiohttp.ClientError, OSError) as error:
                self.lost.append(repr(error))
            await asyncio.sleep(self.pause_s)
