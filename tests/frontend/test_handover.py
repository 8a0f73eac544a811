"""A gateway takes the place of one that runs, under load, and no request is lost; options that would be ignored are refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from slotwise.errors import SlotwiseError
from slotwise.frontend import process
from slotwise.frontend.admission import keys
from slotwise.frontend.handover import Predecessor
from slotwise.frontend.process import GatewayRecord
from slotwise.server.processes import start_time

from .standin import StandIn
from .test_grpc import client_of

pytestmark = pytest.mark.anyio
PATIENCE_S = 180  # of a request that is in flight while the second one starts, which takes a busy machine long
OPTIONS = ["--translation-port", "-1", "--drain-delay-s", "0", "--timeout-s", str(PATIENCE_S), "--max-queued", "1000"]


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandIn]:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    async with StandIn() as server:
        (tmp_path / "default").mkdir()
        server.record(tmp_path / "default").save()
        yield server
        await asyncio.to_thread(process.stop)


async def start(*options: str) -> GatewayRecord:
    return await asyncio.to_thread(process.start_detached, "default", [*OPTIONS, *options])


def port_of(record: GatewayRecord) -> str:
    return str(urlsplit(record.url).port)


async def status_of(url: str, key: str = "") -> int:
    """What one prediction is answered with, on a connection of its own."""
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return (await client.post(f"{url}/predictions/digits", content=b"x", headers=headers)).status_code


async def gone(record: GatewayRecord) -> None:
    async with asyncio.timeout(120):
        while start_time(record.pid) or start_time(record.keeper):
            await asyncio.sleep(0.02)


async def ask(record: GatewayRecord, stop: asyncio.Event, *, keep: bool) -> list[int]:
    """One client: its answers' statuses, until it is told to stop. keep: on connections that stay open."""
    statuses: list[int] = []
    limits = httpx.Limits(max_keepalive_connections=None if keep else 0)
    async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits, trust_env=False) as client:
        while not stop.is_set():
            statuses.append((await client.post(f"{record.url}/predictions/digits", content=b"x")).status_code)
    return statuses


async def test_replaced_under_load_it_loses_nothing(server: StandIn) -> None:
    first = await start("--port", "0", "--grpc-port", "0")
    stop = asyncio.Event()
    clients = [asyncio.create_task(ask(first, stop, keep=bool(number % 2))) for number in range(8)]
    records, seen = [first], 0
    for _ in range(3):
        while len(server.seen) < seen + 50:
            await asyncio.sleep(0.01)
        records.append(await start("--port", port_of(first), "--grpc-port", str(first.grpc_port), "--replace"))
        seen = len(server.seen)
        async with client_of(first.grpc) as call:
            assert (await call("ServerLive")).live
    stop.set()
    statuses = [status for client in await asyncio.gather(*clients) for status in client]
    assert statuses.count(200) == len(statuses) > 100
    assert len({record.pid for record in records}) == len(records)
    assert {(record.url, record.grpc) for record in records} == {(first.url, first.grpc)}
    for record in records[:-1]:
        await gone(record)
    running = process.running()
    assert running is not None
    assert running.pid == records[-1].pid
    await asyncio.to_thread(process.stop)
    await gone(running)
    with pytest.raises(httpx.ConnectError):
        httpx.get(first.url)


async def test_what_is_in_flight_is_answered_and_what_is_idle_may_still_ask(server: StandIn) -> None:
    first = await start("--port", "0")
    server.gate = asyncio.Event()
    kept = httpx.Limits(keepalive_expiry=60)  # a busy machine takes longer to start the second one than httpx keeps connections
    async with (
        httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as busy,
        httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False, limits=kept) as idle,
    ):
        assert (await idle.get(f"{first.url}/ready")).status_code == 200
        asked = asyncio.create_task(busy.post(f"{first.url}/predictions/digits", content=b"x"))
        while not server.seen:
            await asyncio.sleep(0.01)
        second = await start("--port", port_of(first), "--replace")
        assert first.alive()
        server.gate.set()
        answer = await asked
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        answer = await idle.get(f"{first.url}/ready")  # on the old one's connection: it is ready, and says good-bye
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert "connection" not in (await idle.get(f"{first.url}/ready")).headers
        await busy.post(f"{first.url}/predictions/digits", content=b"x")
    await gone(first)
    assert second.alive()


async def test_whoever_stops_the_new_one_waits_for_the_old_one(server: StandIn) -> None:
    first = await start("--port", "0")
    server.gate = asyncio.Event()
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as client:
        asked = asyncio.create_task(client.post(f"{first.url}/predictions/digits", content=b"x"))
        while not server.seen:
            await asyncio.sleep(0.01)
        second = await start("--port", port_of(first), "--replace")
        stopping = asyncio.create_task(asyncio.to_thread(process.stop))
        await asyncio.sleep(0.5)
        assert first.alive()
        assert second.alive()
        server.gate.set()
        assert (await asked).status_code == 200
        assert await stopping
    await gone(first)
    await gone(second)


async def test_both_write_one_log(server: StandIn, tmp_path: Path) -> None:
    first = await start("--port", "0")
    log = tmp_path / "default" / "gateway.log"
    before = log.read_text()
    assert "page: " in before
    await start("--port", port_of(first), "--replace")
    await gone(first)
    written = log.read_text()
    assert written.startswith(before)
    assert "\0" not in written
    assert "replaced: no connection is accepted any more" in written
    assert written.count("page: ") == 2


def test_who_comes_while_the_old_one_is_stopped_is_still_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It got the sockets in the moment for which one that is told to end still accepts connections."""
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    old = subprocess.Popen(["sleep", "60"])
    first = GatewayRecord(name="default", pid=old.pid, started=start_time(old.pid), url="http://127.0.0.1:1", drain_s=5.0)
    second = GatewayRecord.of_this_process(name="default", url=first.url, drain_s=1.0, keeper=0)
    usual = psutil.Process.terminate

    def terminate(ended: psutil.Process) -> None:
        second.save()
        usual(ended)

    monkeypatch.setattr(psutil.Process, "terminate", terminate)
    first.save()
    assert process.stop()
    assert not first.alive()
    assert process.running() == second


async def test_a_successor_that_fails_changes_nothing(server: StandIn, tmp_path: Path) -> None:
    first = await start("--port", "0")
    for wrong in (["--keys", "nosuch.json"], ["--translation-port", str(server.port)]):
        with pytest.raises(SlotwiseError, match="did not start"):
            await start("--port", port_of(first), "--replace", *wrong)
    assert process.running() == first
    assert await status_of(first.url) == 200
    key = keys.add(tmp_path / "keys.json", "app")
    second = await start("--port", port_of(first), "--replace", "--keys", str(tmp_path / "keys.json"))
    await gone(first)
    assert (await status_of(first.url), await status_of(first.url, key)) == (401, 200)
    os.kill(second.pid, signal.SIGKILL)  # its keeper starts it again, as ever
    while start_time(second.pid):
        await asyncio.sleep(0.01)
    assert await status_of(first.url, key) == 200


async def test_of_many_successors_at_once_one_runs(server: StandIn) -> None:
    first = await start("--port", "0")
    found = await asyncio.gather(*(start("--port", port_of(first), "--replace") for _ in range(3)), return_exceptions=True)
    won = [record for record in found if isinstance(record, GatewayRecord)]
    refused = [error for error in found if isinstance(error, SlotwiseError)]
    assert len(won) + len(refused) == 3
    assert all("is being started already" in error.message for error in refused)
    running = process.running()
    assert running is not None
    for record in (first, *won):  # one that was up before another one came is replaced, too
        if record.pid != running.pid:
            await gone(record)
    assert [record.pid for record in won if start_time(record.pid)] == [running.pid]


def test_there_is_nobody_to_take_over_from() -> None:
    with pytest.raises(SlotwiseError, match="cannot hand"):
        Predecessor("")
    with pytest.raises(SlotwiseError, match="does not hand"):
        Predecessor("slotwise-gateway-nosuch")


async def detached(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slotwise.cli", "gateway", "--detach", "--json", *options]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)


async def test_an_option_that_would_be_ignored_is_an_error(server: StandIn, tmp_path: Path) -> None:
    keys.add(tmp_path / "keys.json", "app")
    started = await detached(*OPTIONS, "--port", "0", "--no-hedge")
    assert started.returncode == 0, started.stderr
    url = json.loads(started.stdout)["url"]
    for same in ([], ["--no-hedge"], ["--timeout-s", f"{PATIENCE_S}.0", "--port", "0"]):
        again = await detached(*same)
        assert (again.returncode, again.stdout) == (0, started.stdout), again.stderr
    ignored = ["--keys", str(tmp_path / "keys.json"), "--public", "metrics", "--hedge", "--no-hedge"]
    refused = await detached(*ignored)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines() == [
        f"error: a gateway for 'default' is already running at {url}, without this --keys, --public",
        "hint: --replace has one with these options take its place: no request is lost",
    ]
    port = str(urlsplit(url).port)
    replaced = await detached(*OPTIONS, *ignored, "--port", port, "--replace")
    assert replaced.returncode == 0, replaced.stderr
    assert json.loads(replaced.stdout)["url"] == url
    assert await status_of(url) == 401
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{url}/metrics")).status_code == 200
