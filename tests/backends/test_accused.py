"""Requests that nobody waits for any more when their worker ends: what ends workers is known all the same."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slotwise.backends.exchange import BackendRequest, Refused, digest_of
from slotwise.backends.local import model_queue, queue_members
from slotwise.backends.local.queue_members import Accused, WaitingRequest
from slotwise.errors import SlotwiseError
from slotwise.worker.request import Request
from tests.backends.test_placed_models import Batch, Child, Cluster, cluster

KILLER = b"kills"
TARGET = "/predictions/m"


@dataclass
class Lingering(Child):
    """A child that takes a while to die of a body. dies: let it."""

    dies: threading.Event = field(default_factory=threading.Event)

    def answer_batch(self, requests: Sequence[Request]) -> Batch:
        if all(one.body != KILLER for one in requests):
            return super().answer_batch(requests)
        self.batches.append([one.body for one in requests])
        self.began.set()
        self.dies.wait(30)
        self.gone = True
        raise SlotwiseError("it died")


@dataclass
class Late(BackendRequest):
    """A request whose body is let go once it has ended. known: what is known of those that were convicted."""

    known: list[bytes] = field(default_factory=list)

    def convict(self) -> None:
        self.known.append(self.digest)


async def status(here: Cluster, body: bytes, known: list[bytes], left_s: float = 30.0) -> int:
    """What a request with this body gets."""
    request = Late("m", time.monotonic() + left_s, body.decode(), TARGET, {}, body, known=known)
    try:
        return (await here.served.answer(request)).status
    except Refused as refused:
        return refused.status
    finally:
        request.body = b""


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_queue, "CALM_S", 0.01)


def test_a_deadline_that_passes_before_the_worker_ends_protects_no_killer(tmp_path: Path) -> None:
    async def run() -> None:
        known: list[bytes] = []
        async with cluster(tmp_path) as here:
            for deaths in (1, 2):
                child = Lingering()
                here.replica(child)
                await here.ready(1)
                assert await status(here, KILLER, known, 0.1) == 504
                child.dies.set()
                await here.ready(0)
                assert known == [digest_of("m", KILLER, TARGET)] * (deaths - 1)

    asyncio.run(run())


def test_one_that_was_late_in_company_goes_alone_the_next_time_and_the_innocent_are_answered(tmp_path: Path) -> None:
    async def run() -> None:
        known: list[bytes] = []
        async with cluster(tmp_path) as here:
            first, second, third = Lingering(), Lingering(), Lingering()
            here.replica(first)
            await here.ready(1)
            late = (status(here, body, known, 0.1) for body in (b"1", KILLER, b"2"))
            assert await asyncio.gather(*late) == [504, 504, 504]
            first.dies.set()
            await here.ready(0)
            here.replica(second)
            await here.ready(1)
            assert await asyncio.gather(*(status(here, body, known) for body in (b"1", b"2", b"3"))) == [200] * 3
            second.dies.set()
            asked = asyncio.gather(*(status(here, body, known) for body in (b"4", KILLER, b"5")))
            await here.ready(0)
            here.replica(third)
            assert await asked == [200, 500, 200]
            assert known == [digest_of("m", KILLER, TARGET)]
            assert [KILLER] in second.batches
            assert [b"1"] in second.batches
            assert await asyncio.gather(*(status(here, body, known) for body in (b"1", b"2", b"3"))) == [200] * 3
            assert sorted(third.batches[-1]) == [b"1", b"2", b"3"]  # nobody has anything against them any more

    asyncio.run(run())


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_members, "BODIES", 3)

    async def run() -> None:
        def one(i: int) -> WaitingRequest:
            answer = asyncio.get_running_loop().create_future()
            return WaitingRequest(i, BackendRequest("m", 0.0, body=b"%d" % i), b"", answer, 0.0, deaths=1)

        kept = Accused()
        for i in range(9):
            kept.add(one(i))
        assert [kept.meets(one(i)) for i in (5, 6, 6)] == [False, True, False]

    asyncio.run(run())
