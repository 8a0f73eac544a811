"""Whatever is killed at whatever step of a roll-out: the front goes on, and what was begun is finished or undone."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from slotwise.deploy.canary_share import CanaryShare
from slotwise.deploy.rollout import RolloutPlan, _same_workers, _steps
from slotwise.deploy.takeover import forget_interrupted, take_over
from slotwise.errors import SlotwiseError
from slotwise.frontend.process import GatewayRecord
from slotwise.frontend.rollout.record import RolloutRecord, interrupted, load_all
from slotwise.worker.environment.digests import file_sha256
from tests.frontend.live import StandInThread

from . import killed_rollout

PATIENCE_S = 240.0


@dataclass
class Clients:
    """Clients that ask all the time. statuses: every answer that was no 200; broken: connections that broke."""

    url: str
    model: str = "digits"
    right: int = 0
    broken: int = 0
    statuses: list[str] = field(default_factory=list)
    over: bool = False

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Within, they ask."""
        thread = threading.Thread(target=lambda: asyncio.run(self._all()))
        thread.start()
        try:
            yield
        finally:
            self.over = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a request hangs"

    def wait_for(self, more: int) -> None:
        """Return after so many further right answers."""
        wanted, deadline = self.right + more, time.monotonic() + PATIENCE_S
        while self.right < wanted:
            assert time.monotonic() < deadline, f"no more answers: {self.statuses[-3:]}"
            time.sleep(0.01)

    async def _all(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as http:
            await asyncio.gather(*[self._one(http) for _ in range(4)])

    async def _one(self, http: aiohttp.ClientSession) -> None:
        while not self.over:
            try:
                async with http.post(f"{self.url}/predictions/{self.model}", data=b"picture") as answer:
                    text = await answer.text()
                    self.right += answer.status == 200
                    if answer.status != 200:
                        self.statuses.append(f"{answer.status} {text}")
            except (aiohttp.ClientError, OSError):
                self.broken += 1
            await asyncio.sleep(0.005)


@dataclass
class Place:
    """A stand-in server whose models take a while to load, a gateway in front of it, and clients."""

    server: StandInThread
    gateway: GatewayRecord
    clients: Clients

    def begin(self, whom: str, step: int) -> subprocess.Popen[str]:
        """A roll-out that ends `whom` at that step."""
        command = [sys.executable, "-m", "tests.deploy.killed_rollout", whom, str(step)]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )

    def reset(self) -> None:
        """One model, as it was in the beginning."""
        self.server.server.models, self.server.server.archives = {"digits": 2}, {}

    def is_whole(self) -> bool:
        """Whether there is the model, and nothing else."""
        return self.server.server.models == {"digits": 2} and not load_all("default")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    server = StandInThread(models={"digits": 2}, loads_s=0.2, takes_s=(0.001, 0.005), batch_size=64)
    with server.front(tmp_path) as gateway:
        yield Place(server, gateway, Clients(gateway.url))


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    from slotwise.deploy import rollout
    from slotwise.frontend.rollout import verdict as rollout_verdict

    for owner, name, value in (
        *((rollout_verdict, "LEAST_REQUESTS", 5), (rollout_verdict, "LEAST_WINDOWS", 1)),
        *((rollout, "SHORTEST_S", 0.1), (rollout, "POLL_S", 0.05)),
    ):
        monkeypatch.setattr(owner, name, value)


EVERY = pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.long), 6])


@EVERY
@pytest.mark.usefixtures("_quick")
def test_a_roll_out_that_is_killed_at_any_step_loses_nothing_and_the_next_one_finishes_or_undoes_it(
    place: Place, every: int
) -> None:
    with place.clients.asking():
        for step in itertools.count(every, every):
            place.reset()
            begun = place.begin("rollout", step)
            printed = begun.communicate(timeout=PATIENCE_S)[0]
            if begun.returncode == 0:
                break
            assert begun.returncode == -9, printed
            place.clients.wait_for(50)
            said: list[str] = []
            assert "is the new archive now" in killed_rollout.carry_out("digits", said.append), said
            assert place.is_whole(), (step, place.server.server.models, load_all("default"), said)
            assert place.server.server.archives["digits"] == "better.mar"
    assert step > 12
    assert place.clients.statuses == []
    assert place.clients.broken == 0


@EVERY
def test_a_gateway_that_is_killed_at_any_step_is_started_again_and_the_roll_out_goes_on(place: Place, every: int) -> None:
    with place.clients.asking():
        for step in itertools.count(every, every):
            place.reset()
            begun = place.begin("gateway", step)
            printed = begun.communicate(timeout=PATIENCE_S)[0]
            assert begun.returncode == 0, printed
            assert place.is_whole(), (step, place.server.server.models, load_all("default"), printed)
            place.clients.wait_for(50)
            if int(printed.split()[-1]) < step:
                break
    assert step > 12
    assert place.clients.statuses == []
    assert place.clients.broken > 0


def test_a_server_that_ends_at_any_step_is_served_again_and_nothing_of_the_roll_out_is_left(place: Place) -> None:
    with place.clients.asking():
        for step in (2, 4, 6, 9, 11, 13):
            place.reset()
            place.clients.wait_for(50)
            begun = place.begin("server", step)
            assert begun.stdout is not None
            while begun.stdout.readline().strip() != "server":
                assert begun.poll() is None
            place.server.down()
            printed = begun.communicate("\n", timeout=PATIENCE_S)[0]
            assert begun.returncode == 1, printed
            place.reset()  # as `slotwise serve digits` does it
            forget_interrupted("default", lambda line: None)
            place.server.up()
            place.clients.wait_for(50)
            assert place.is_whole()


@pytest.mark.usefixtures("_quick")
def test_where_neither_archive_can_be_registered_the_new_one_goes_on_in_the_models_place(place: Place) -> None:
    said: list[str] = []
    begun = place.begin("rollout", 0)
    with place.clients.asking():
        while place.server.server.models.keys() != {"digits", "digits--new"}:
            time.sleep(0.01)
        place.server.server.broken = {"better.mar", "digits.mar"}
        printed = begun.communicate(timeout=PATIENCE_S)[0]
        assert begun.returncode == 1
        assert "digits cannot answer, so digits--new goes on in its place" in printed
        assert place.server.server.models.keys() == {"digits--new"}
        place.clients.wait_for(50)
        with pytest.raises(SlotwiseError, match="is not settled"):
            killed_rollout.carry_out("digits", said.append)
        place.clients.wait_for(50)
        place.server.server.broken = {"better.mar"}
        with pytest.raises(SlotwiseError, match="cannot be registered"):
            killed_rollout.carry_out("digits", said.append)
        place.clients.wait_for(50)
    assert place.is_whole()
    assert place.clients.statuses == []
    assert interrupted("default") == ()


@pytest.mark.usefixtures("_quick")
def test_a_model_of_the_name_that_a_roll_out_needs_is_left_alone(place: Place) -> None:
    place.server.server.models = {"digits": 2, "digits--new": 1}
    with pytest.raises(SlotwiseError, match="digits--new is registered, and a roll-out needs that name"):
        killed_rollout.carry_out("digits", lambda line: None)
    assert place.server.server.models == {"digits": 2, "digits--new": 1}


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("whose", ["old", "new"])
def test_a_model_whose_requests_belong_to_sequences_is_left_alone(
    place: Place, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker of the old archive knows of a sequence no worker of the new one knows."""
    if whose == "old":
        place.server.server.stateful = {"digits"}
    else:
        monkeypatch.setattr(killed_rollout.Archive, "config", {"sequenceBatching": True})
    with pytest.raises(SlotwiseError, match="the requests of digits belong to sequences"):
        killed_rollout.carry_out("digits", lambda line: None)
    assert place.server.server.models == {"digits": 2}


@pytest.mark.usefixtures("_quick")
def test_of_one_model_the_second_roll_out_is_refused_and_of_two_each_has_its_own(place: Place) -> None:
    place.server.server.models = {"digits": 2, "other": 1}
    begun = place.begin("rollout", 0)
    with place.clients.asking(), Clients(place.gateway.url, "other").asking():
        while "digits--new" not in place.server.server.models:
            time.sleep(0.01)
        with pytest.raises(SlotwiseError, match="another roll-out of digits is going on"):
            killed_rollout.carry_out("digits", lambda line: None)
        assert "other is the new archive now" in killed_rollout.carry_out("other", lambda line: None)
        assert "digits is the new archive now" in begun.communicate(timeout=PATIENCE_S)[0]
    assert place.server.server.models == {"digits": 2, "other": 1}
    assert place.server.server.archives["other"] == "better.mar"
    assert place.clients.statuses == []


@pytest.mark.usefixtures("_quick")
def test_a_roll_out_keeps_the_number_of_workers_also_where_it_changes_meanwhile(place: Place) -> None:
    begun = place.begin("rollout", 0)
    with place.clients.asking():
        while "digits--new" not in place.server.server.models:
            time.sleep(0.01)
        assert place.server.server.models["digits--new"] == 2
        place.server.server.models["digits"] = 3
        assert "is the new archive now" in begun.communicate(timeout=PATIENCE_S)[0]
    assert place.server.server.models == {"digits": 3}


@pytest.mark.usefixtures("_quick")
def test_a_shadow_is_refused_where_its_copies_must_not_be_sent() -> None:
    counted = {"windows": [], "counted_by": 1, "owner": 1, "unsuited": 0, "uncopied": 1}
    record = SimpleNamespace(model="digits", new="digits--new")
    share: Any = SimpleNamespace(record=record, write=lambda percent: None, counted=lambda: counted)
    client: Any = SimpleNamespace(describe=lambda model: SimpleNamespace(workers=[1], scaled_there=False))
    with pytest.raises(SlotwiseError, match=r"requests to digits must not be sent twice: .*--no-hedge"):
        _steps(client, share, RolloutPlan([100.0], 1.0, shadow=True), print)


def test_where_its_server_scales_the_new_archive_it_is_not_told_how_many_workers_to_have() -> None:
    """Ray refuses that: the roll-out would end as soon as one of the two has more load."""
    live = {"digits": SimpleNamespace(workers=[1, 2]), "digits--new": SimpleNamespace(workers=[1], scaled_there=True)}
    client: Any = SimpleNamespace(describe=live.__getitem__)  # it has nothing to scale with
    record: Any = SimpleNamespace(model="digits", new="digits--new")
    _same_workers(client, record)


class Registered:
    """A server with a model store. later: what runs where NEW.mar is registered from now on."""

    def __init__(self, store: Path, content: str) -> None:
        self.record, self.content = SimpleNamespace(model_store=store), content
        self.models, self.later = {"digits": "old", "digits--new": content}, content

    def list(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.models]

    def describe(self, name: str) -> Any:
        return SimpleNamespace(name=name, ready_workers=1, workers=(1,), contents={self.models[name]})

    def register(self, archive: str, *, name: str, **settings: Any) -> None:
        self.models[name] = "old" if archive == "old.mar" else self.later

    def unregister(self, name: str) -> None:
        del self.models[name]

    def wait_ready(self, *_: Any, **__: Any) -> None:
        """At once."""


@pytest.mark.parametrize("changed", ["", "file", "gone", "runs", "later"])
def test_what_takes_the_models_place_is_what_was_compared(
    tmp_path: Path, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    file = tmp_path / "better.mar"
    file.write_bytes(b"compared")
    registration = {"initial_workers": 1}
    record = RolloutRecord(
        name="default",
        pid=1,
        started=0.0,
        model="digits",
        new="digits--new",
        after={"archive": "better.mar", **registration},
        before={"archive": "old.mar", **registration},
        sha256=file_sha256(file),
        content="new",
    )
    client, said = Registered(tmp_path, "new"), list[str]()
    if changed == "file":
        file.write_bytes(b"another")
    elif changed == "gone":
        file.unlink()
    elif changed == "runs":
        client.models["digits--new"] = "another"
    elif changed == "later":
        client.later = "another"
    failing = pytest.raises(SlotwiseError, match="another archive than the one that was compared") if changed else nullcontext()
    with failing:
        take_over(client, CanaryShare(record), record.after, said.append)  # type: ignore[arg-type]
    assert client.models["digits"] == ("old" if changed else "new")
