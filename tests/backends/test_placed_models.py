"""Replicas that call the front: who is let in, whose requests go where, and what a replica's end costs. Needs no Ray."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.backends.exchange import BackendRequest, PieceSink, RawHeaders, Refused
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.prints import FilePrints
from slotwise.errors import SlotwiseError
from slotwise.host.model_versions import ModelVersions
from slotwise.host.on_ray import replica_door
from slotwise.host.on_ray.placed_model import PlacedModel
from slotwise.host.on_ray.replica_door import ReplicaDoor
from slotwise.host.on_ray.server import say_again
from slotwise.server.ray.front_link import AGAIN_S, FRONT, REPLICA, FrontAddress, FrontLink, proof, proves, read_line
from slotwise.server.ray.scaling import ASKED, by_front
from slotwise.worker.answer import Answer
from slotwise.worker.request import Request

SECRET = "of these tests"
RUNS = "a digest-4-0"
PATIENCE_S = 60.0


@dataclass
class Batch:
    answers: list[Answer]
    total_ms: float = 0.0
    decode_ms: float = 0.0
    inference_ms: float = 0.0


@dataclass
class Child:
    """Answers a body with itself; dies of the body "die", for good. free: cleared, it waits in the middle of a batch."""

    free: threading.Event = field(default_factory=threading.Event)
    gone: bool = False
    began: threading.Event = field(default_factory=threading.Event)
    given_up: threading.Event = field(default_factory=threading.Event)
    batches: list[list[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free.set()

    def answer_batch(self, requests: Sequence[Request]) -> Batch:
        self.batches.append([one.body for one in requests])
        self.began.set()
        while not self.free.wait(0.05):
            if self.gone:
                raise SlotwiseError("it was ended")
        if any(one.body == b"die" for one in requests):
            self.gone = True
            raise SlotwiseError("it died")
        return Batch(
            [Answer(200, "text/plain", b"of " + one.body, {"x-asked": one.headers.get("x-name", "")}) for one in requests]
        )

    def alone(self) -> None:
        self.gone = True
        self.given_up.set()


class Sink:
    """Takes no pieces: there are none."""

    needed = False

    def take(self, headers: RawHeaders, piece: bytes) -> None:
        raise AssertionError(piece)


class Cluster:
    """A front's door, one model, and its replicas."""

    def __init__(self, served: PlacedModel, loaded: ModelVersions, address: FrontAddress) -> None:
        self.served, self.loaded, self.address = served, loaded, address
        self.links: list[FrontLink] = []

    def replica(self, child: Child, secret: str = SECRET, runs: str = RUNS, **facts: Any) -> FrontLink:
        """Start one."""
        address = FrontAddress(self.address.host, self.address.port, secret)
        about = {"model": "m", "version": "1", "runs": runs, "replica": f"r{len(self.links)}"}
        self.links.append(FrontLink(lambda: address, about, {"engine": "none", "version": "1.0", **facts}, child))
        return self.links[-1]

    async def ready(self, count: int) -> None:
        """Wait until so many are linked."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.served.queue.workers) != count:
                await asyncio.sleep(0.01)

    async def ask(self, body: bytes, pieces: PieceSink | None = None) -> Any:
        """One request's answer, or why there is none."""
        about = {"x-name": body.decode()}
        request = BackendRequest(
            "m", time.monotonic() + PATIENCE_S, f"r-{body!r}", "/predictions/m", about, body, pieces=pieces
        )
        try:
            return await self.served.answer(request)
        except Refused as refused:
            return refused


@asynccontextmanager
async def cluster(tmp_path: Path, **changes: Any) -> AsyncIterator[Cluster]:
    """A front that has one model without replicas yet."""
    loaded = ModelVersions(patience_s=5.0)
    settings = ModelSettings(
        name="m",
        version="1",
        archive=tmp_path / "m.mar",
        model_dir=tmp_path / "m",
        environ={},
        prints=FilePrints(tmp_path / "log"),
        batch_size=4,
        histories=None,
        **changes,
    )
    async with ReplicaDoor(loaded, SECRET).open("127.0.0.1") as address:
        served = PlacedModel(settings, runs=RUNS)
        served.scale(1)
        loaded.add(served, default=True)
        one = Cluster(served, loaded, address)
        try:
            yield one
        finally:
            for link in one.links:
                link.leaving.set()
            await loaded.close()


def test_each_request_gets_its_own_answer_and_a_batch_has_no_more_than_its_size(tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path) as here:
            children = [Child(), Child()]
            for child in children:
                here.replica(child)
            await here.ready(2)
            bodies = [str(i).encode() for i in range(50)]
            answers = await asyncio.gather(*map(here.ask, bodies))
            assert [answer.body for answer in answers] == [b"of " + body for body in bodies]
            assert [dict(answer.headers)[b"x-asked"] for answer in answers] == bodies
            batches = [batch for child in children for batch in child.batches]
            assert sorted(body for batch in batches for body in batch) == sorted(bodies)
            assert max(map(len, batches)) <= 4
            assert here.served.ledger.open == 0

    asyncio.run(run())


def test_those_who_only_hold_connections_keep_no_replica_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_door, "MOST_STRANGERS", 4)

    async def run() -> None:
        async with cluster(tmp_path) as here:
            silent = [await asyncio.open_connection(here.address.host, here.address.port) for _ in range(8)]
            here.replica(Child())
            await here.ready(1)
            assert (await here.ask(b"1")).body == b"of 1"
            for _, writer in silent:
                writer.close()

    asyncio.run(run())


def test_requests_wait_for_a_replica_that_is_still_on_its_way(tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path) as here:
            waiting = asyncio.create_task(here.ask(b"1"))
            await asyncio.sleep(0)
            here.replica(Child())
            assert (await waiting).body == b"of 1"

    asyncio.run(run())


def test_a_replica_that_dies_costs_nobody_but_who_killed_two(tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path) as here:
            for _ in range(3):
                here.replica(Child())
            await here.ready(3)
            bodies = [b"die" if i == 7 else str(i).encode() for i in range(20)]
            answers = await asyncio.gather(*map(here.ask, bodies))
            killer = answers.pop(7)
            assert [answer.body for answer in answers] == [b"of " + body for body in bodies if body != b"die"]
            assert (killer.status, len(here.served.queue.workers)) == (500, 1)
            assert here.served.ends["died"] == 2

    asyncio.run(run())


def test_a_replica_that_hangs_is_given_up_and_its_request_goes_to_another(tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path, response_timeout_s=2.0) as here:  # not so little that a busy machine makes the other late
            hanging = Child()
            hanging.free.clear()
            here.replica(hanging)
            await here.ready(1)
            asked = asyncio.create_task(here.ask(b"1"))
            await asyncio.to_thread(hanging.began.wait, PATIENCE_S)
            here.replica(Child())
            assert (await asked).body == b"of 1"
            assert await asyncio.to_thread(hanging.given_up.wait, PATIENCE_S)  # it ends, and Ray starts another

    asyncio.run(run())


def test_a_replica_that_goes_answers_what_it_has_and_gets_no_more(tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path) as here:
            going, staying = Child(), Child()
            going.free.clear()
            link = here.replica(going)
            await here.ready(1)
            first = asyncio.create_task(here.ask(b"1"))
            await asyncio.to_thread(going.began.wait, PATIENCE_S)
            here.replica(staying)
            await here.ready(2)
            left = asyncio.create_task(asyncio.to_thread(link.leave, PATIENCE_S))
            async with asyncio.timeout(PATIENCE_S):
                while all(other.status != "UNLOADING" for other in here.served.links):
                    await asyncio.sleep(0.01)
            others = await asyncio.gather(*(here.ask(str(i).encode()) for i in range(2, 9)))
            going.free.set()
            assert (await first).body == b"of 1"
            await left
            assert [answer.body for answer in others] == [f"of {i}".encode() for i in range(2, 9)]
            assert (going.batches, here.served.ends.total()) == ([[b"1"]], 0)

    asyncio.run(run())


def test_a_replica_calls_again_where_its_front_has_gone(tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path) as here:
            child = Child()
            here.replica(child)
            await here.ready(1)
            here.served.links[0].transport.abort()  # type: ignore[union-attr]
            await here.ready(0)
            await here.ready(1)
            assert (await here.ask(b"1")).body == b"of 1"
            assert not child.gone  # it had nothing in hand

    asyncio.run(run())


class Keeper:
    """Stands in for the actor that replicas ask where the front is; what it knew is gone when it is started again."""

    def __init__(self) -> None:
        self.front: FrontAddress | None = None
        self.failures = 2  # while it is started again

    def hear_at(self, front: FrontAddress) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the actor is started again")
        self.front = front


def test_replicas_find_the_front_again_where_the_actor_that_knew_it_has_forgotten_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with cluster(tmp_path) as here:
            keeper = Keeper()
            about = {"model": "m", "version": "1", "runs": RUNS, "replica": "r"}
            here.links.append(FrontLink(lambda: keeper.front, about, {}, Child()))
            saying = asyncio.create_task(say_again(lambda: keeper.hear_at(here.address), 0.05))
            await here.ready(1)
            keeper.front, keeper.failures = None, 2
            here.served.links[0].transport.abort()  # type: ignore[union-attr]
            await here.ready(0)
            await here.ready(1)
            saying.cancel()

    asyncio.run(run())
    assert caplog.text.count("replicas cannot be told where the front is") == 2  # once each time


def test_a_replica_of_an_earlier_registration_gets_nothing_of_the_next(tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path) as here:
            old, new = Child(), Child()
            here.replica(old)
            await here.ready(1)
            await here.loaded.remove("m", "1")
            here.served = PlacedModel(here.served.settings, runs="another digest-4-0")
            here.loaded.add(here.served, default=True)
            here.served.scale(1)
            asked = asyncio.create_task(here.ask(b"1"))
            await asyncio.sleep(3 * AGAIN_S)  # the old one has called again
            here.replica(new, runs="another digest-4-0")
            assert (await asked).body == b"of 1"
            assert (old.batches, new.batches) == ([], [[b"1"]])

    asyncio.run(run())


def test_a_replica_of_an_archive_that_streams_answers_whole(tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path) as here:
            child = Child()
            here.replica(child, streams={"slots": 4}, cancels=True)
            await here.ready(1)
            bodies = [str(i).encode() for i in range(7)]
            answers = await asyncio.gather(*map(here.ask, bodies[:6]), here.ask(bodies[6], Sink()))
            assert [answer.body for answer in answers] == [b"of " + body for body in bodies]
            assert (here.served.ends.total(), child.gone) == (0, False)

    asyncio.run(run())


def test_replicas_hear_how_much_there_is_to_do(tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path) as here:
            child = Child()
            child.free.clear()
            link = here.replica(child)
            await here.ready(1)
            asked = [asyncio.create_task(here.ask(str(i).encode())) for i in range(9)]
            await asyncio.sleep(0)
            here.served.tell_asked()
            await asyncio.to_thread(child.began.wait, PATIENCE_S)
            child.free.set()
            await asyncio.gather(*asked)
            async with asyncio.timeout(PATIENCE_S):
                while link.asked != 9.0:  # it reads between two batches
                    await asyncio.sleep(0.01)

    asyncio.run(run())


@pytest.mark.parametrize(("asked", "target", "replicas"), [({}, 4, 1), ({"a": 4.0, "b": 4.0}, 4, 2), ({"a": 9.0}, 4, 3)])
def test_ray_has_as_many_replicas_as_their_target_wants(asked: dict[str, float], target: float, replicas: int) -> None:
    config = SimpleNamespace(get_target_ongoing_requests=lambda: target)
    context = SimpleNamespace(aggregated_metrics={ASKED: asked} if asked else None, config=config)
    assert by_front(context) == (replicas, {})


@contextmanager
def stranger(address: FrontAddress) -> Iterator[tuple[socket.socket, str]]:
    """A connection to the door, and the nonce that it was told."""
    with socket.create_connection((address.host, address.port), timeout=PATIENCE_S) as sock:
        yield sock, read_line(sock)


def heard(sock: socket.socket) -> bytes:
    """What comes until the other end hangs up."""
    with contextlib.suppress(ConnectionResetError):
        return sock.recv(100)
    return b""


def replied(address: FrontAddress, changes: dict[str, Any]) -> bytes:
    """What the door says to a replica that knows the secret, but for these changes."""
    with stranger(address) as (sock, theirs):
        about = {"nonce": "n", "model": "m", "version": "1", "runs": RUNS, "replica": "r", **changes}
        said = {**about, "proof": proof(SECRET, REPLICA, theirs, *map(str, about.values())), **changes}
        sock.sendall(json.dumps(said).encode() + b"\n")
        return heard(sock)


def test_who_cannot_prove_that_it_is_a_replica_gets_nothing(tmp_path: Path) -> None:
    def sent(address: FrontAddress, line: bytes) -> bytes:
        with stranger(address) as (sock, _):
            sock.sendall(line)
            return heard(sock)

    async def run() -> None:
        async with cluster(tmp_path) as here:
            good = await asyncio.to_thread(replied, here.address, {})
            assert len(good.split(b"\n")[0]) == 64
            for changes in (
                {"proof": "x"},
                {"proof": None},
                {"proof": "é"},
                {"proof": proof(SECRET, FRONT, "n")},
                {"model": "other"},
                {"runs": "another"},
            ):
                assert await asyncio.to_thread(replied, here.address, changes) == b"", changes
            for line in (b"GET / HTTP/1.1\r\n", b"[]\n", b"1\n", b"\xff\n", b"[" * 4000 + b"\n", b"x" * 5000):
                assert await asyncio.to_thread(sent, here.address, line) == b"", line[:20]

    asyncio.run(run())


def test_a_replica_with_another_secret_gets_no_request_and_gives_its_own_to_nobody(tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path) as here:
            child = Child()
            here.replica(child, secret="another")
            here.replica(Child())
            await here.ready(1)
            assert (await here.ask(b"1")).body == b"of 1"
            assert child.batches == []

    asyncio.run(run())


def test_a_replica_answers_nobody_who_is_not_the_front() -> None:
    child, heard_line = Child(), []
    with socket.create_server(("127.0.0.1", 0)) as feigned:
        feigned.settimeout(PATIENCE_S)
        address = FrontAddress("127.0.0.1", feigned.getsockname()[1], SECRET)
        about = {"model": "m", "version": "1", "runs": RUNS, "replica": "r"}
        link = FrontLink(lambda: address, about, {}, child)
        with feigned.accept()[0] as sock:
            sock.settimeout(PATIENCE_S)
            sock.sendall(b"a nonce\n")
            heard_line.append(read_line(sock))
            sock.sendall(b"x" * 64 + b"\n")
            assert heard(sock) == b""
        link.leaving.set()
    assert SECRET not in heard_line[0]
    assert child.batches == []


def test_a_proof_is_of_one_side_and_one_conversation() -> None:
    assert proves(proof(SECRET, FRONT, "a", "b"), SECRET, FRONT, "a", "b")
    for other in ((SECRET, REPLICA, "a", "b"), (SECRET, FRONT, "b", "a"), ("other", FRONT, "a", "b")):
        assert not proves(proof(*other), SECRET, FRONT, "a", "b")
