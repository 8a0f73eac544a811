"""A gateway that dies is started again on the same ports, and its keeper ends when it does. The server is a stand-in."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest

from slotwise.frontend import keeper, process
from slotwise.frontend.process import GatewayRecord
from slotwise.server.processes import start_time
from tests.support.grpc_client import client_of

from .standin import StandIn

pytestmark = pytest.mark.anyio
OPTIONS = ["--port", "0", "--translation-port", "-1", "--grpc-port", "0", "--drain-delay-s", "0", "--timeout-s", "5"]


@pytest.fixture
async def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GatewayRecord]:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    async with StandIn() as server:
        (tmp_path / "default").mkdir()
        server.record(tmp_path / "default").save()
        yield await asyncio.to_thread(process.start_detached, "default", OPTIONS)
        await asyncio.to_thread(process.stop)


async def test_a_gateway_that_dies_is_started_again_where_it_was(record: GatewayRecord) -> None:
    new = record
    for times, deadly in enumerate([signal.SIGSEGV, signal.SIGKILL], 1):
        os.kill(new.pid, deadly)
        while start_time(new.pid):
            await asyncio.sleep(0.01)
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(f"{record.url}/predictions/digits", content=b"x")  # waits until it is there again
            assert answer.status_code == 200
            assert f"slotwise_gateway_restarts {times}.0" in (await client.get(f"{record.url}/metrics")).text
        async with client_of(record.grpc) as call:
            assert (await call("ServerLive")).live
        found = process.running()
        assert found is not None
        assert found.pid != new.pid
        new = found
    assert (new.url, new.grpc, new.keeper) == (record.url, record.grpc, record.keeper)
    assert await asyncio.to_thread(process.stop)
    assert not psutil.pid_exists(new.pid)
    assert not psutil.pid_exists(new.keeper)
    with pytest.raises(httpx.ConnectError):
        httpx.get(record.url)


async def test_whichever_is_told_to_end_both_do(record: GatewayRecord) -> None:
    os.kill(record.pid, signal.SIGTERM)
    while record.alive():
        await asyncio.sleep(0.02)
    assert GatewayRecord.load("default") is None


async def test_without_its_keeper_it_ends_in_order(record: GatewayRecord) -> None:
    os.kill(record.keeper, signal.SIGKILL)
    while record.alive():
        await asyncio.sleep(0.02)
    assert GatewayRecord.load("default") is None


def test_a_full_disk_is_no_reason_to_start_nothing_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    monkeypatch.setattr(GatewayRecord, "write", full)
    record = GatewayRecord.of_this_process(name="default", url="http://127.0.0.1:1", drain_s=1.0, keeper=0)
    record.save(restarts=1)
    with pytest.raises(OSError, match="No space"):
        record.save()
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stderr", full)
        keeper._say(1, 137)
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space"):
            full.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


STRUCK_AT_THE_FORK = """
import os, signal, sys, time
from slotwise import interrupts
from slotwise.frontend.keeper import keep

interrupts.install()
os.register_at_fork(**{sys.argv[1]: lambda: os.kill(os.getpid(), signal.SIGINT)})
try:
    with interrupts.let_through():
        keep([], lambda pid: True)
        while True:  # a signal that comes just before `pause` would not end it
            time.sleep(0.01)
except KeyboardInterrupt:
    os.write(2, b"stopped\\n")
    os._exit(130)
"""


@pytest.mark.parametrize("times", range(2))
@pytest.mark.parametrize("when", ["before", "after_in_parent"])
def test_a_signal_at_the_fork_is_heard_once(when: str, times: int) -> None:
    ended = subprocess.run([sys.executable, "-c", STRUCK_AT_THE_FORK, when], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "stopped\n")
