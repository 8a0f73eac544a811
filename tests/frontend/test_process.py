"""`slotwise gateway` as a process: its ports, its record, its orderly end, and clients that hang up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import uvicorn

from slotwise.backends.remote.remote_backend import RemoteBackend
from slotwise.backends.remote.server_view import server_view
from slotwise.errors import SlotwiseError
from slotwise.frontend import process, serve
from slotwise.frontend.frontend import GatewayOptions
from slotwise.frontend.keeper import Kept
from slotwise.frontend.listening import ListenAddress, bound
from slotwise.frontend.process import GatewayRecord
from slotwise.frontend.succession import Starting
from slotwise.profiles.ports import Ports

from .standin import StandIn

pytestmark = pytest.mark.anyio
OPTIONS = ("--port", "0", "--translation-port", "-1", "--drain-delay-s", "0.3")


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: str) -> AsyncIterator[StandIn]:
    """A stand-in server that `slotwise serve` seems to have started."""
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    async with StandIn(models={"digits": 1, "translation": 1}) as server:
        (tmp_path / "default").mkdir()
        record = server.record(tmp_path / "default")
        record.save()
        yield server
        await asyncio.to_thread(process.stop)


async def start(*options: str) -> GatewayRecord:
    return await asyncio.to_thread(process.start_detached, "default", list(options))


async def predict(record: GatewayRecord, **given: Any) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(f"{record.url}/predictions/digits", content=b"x", timeout=60, **given)


async def test_both_ports_answer_and_stop_ends_it(server: StandIn, tmp_path: Path) -> None:
    second = Ports.free().inference
    record = await start("--port", "0", "--translation-port", str(second), "--drain-delay-s", "0")
    assert (await predict(record)).status_code == 200
    async with httpx.AsyncClient() as client:
        assert (await client.post(f"http://127.0.0.1:{second}/translation", content=b"{}")).status_code == 200
        assert (await client.get(record.page)).status_code == 200
    with pytest.raises(SlotwiseError, match="already running"):
        await start(*OPTIONS)
    assert await asyncio.to_thread(process.stop)
    assert not record.alive()
    assert not (tmp_path / "default" / "gateway.json").exists()
    assert not await asyncio.to_thread(process.stop)


async def test_a_port_in_use_is_one_line(server: StandIn) -> None:
    with pytest.raises(SlotwiseError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        await start("--port", str(server.port))


async def test_a_port_that_is_http_s_and_grpc_s_is_one_line(server: StandIn) -> None:
    port = str(Ports.free().inference)
    with pytest.raises(SlotwiseError, match=f"cannot listen on 127.0.0.1:{port}"):
        await start(*OPTIONS, "--port", port, "--grpc-port", port)


async def test_of_two_that_have_bound_a_port_one_listens_and_the_other_says_that_it_cannot(server: StandIn) -> None:
    at = ListenAddress(port=Ports.free().inference, translation_port=-1)
    (ours,), (theirs,) = bound(at), bound(at)
    theirs.listen()
    up = list[bool]()
    settings = serve.FrontSettings(at, GatewayOptions(), serve.Access())
    backend = RemoteBackend(server_view("default"), 60)
    front = serve.PreparedFront("default", backend, settings, [ours], lambda: up.append(True))
    with pytest.raises(SlotwiseError, match=f"cannot listen on 127.0.0.1:{at.port}: "):
        await front.server.serve(sockets=[ours])
    assert not up
    for one in (ours, theirs):
        one.close()


async def test_an_address_of_ipv6_stands_in_brackets(server: StandIn) -> None:
    record = await start(*OPTIONS, "--host", "::1", "--grpc-port", "0")
    assert record.url.startswith("http://[::1]:")
    assert record.grpc.startswith("[::1]:")
    assert (await predict(record)).status_code == 200


def test_one_port_for_both_is_one_socket_and_none_is_refused() -> None:
    port = Ports.free().inference
    (only,) = bound(ListenAddress(port=port, translation_port=port))
    assert only.getsockname() == ("127.0.0.1", port)
    only.close()
    with pytest.raises(SlotwiseError, match="no port"):
        bound(ListenAddress(port=-1, translation_port=-1))


def test_an_empty_host_opens_nothing_to_other_machines() -> None:
    with pytest.raises(SlotwiseError, match="--host is empty"):
        bound(ListenAddress("", 0, -1))


async def in_flight(server: StandIn, record: GatewayRecord) -> asyncio.Task[httpx.Response]:
    """A request that has reached the server, which answers it once its gate is open."""
    server.gate = asyncio.Event()
    asked = asyncio.create_task(predict(record))
    while not server.seen:
        await asyncio.sleep(0.01)
    return asked


async def test_while_it_drains_it_is_not_ready_and_answers_who_comes(server: StandIn) -> None:
    record = await start(*OPTIONS, "--drain-delay-s", "300")  # until the second signal
    asked = await in_flight(server, record)
    os.kill(record.pid, signal.SIGTERM)
    async with httpx.AsyncClient() as client:
        while (answer := await client.get(f"{record.url}/ready")).status_code == 200:
            await asyncio.sleep(0.01)
        assert (answer.status_code, answer.json()["draining"]) == (503, True)
        assert server.gate is not None
        server.gate.set()
        late = await client.post(f"{record.url}/predictions/digits", content=b"late")
        assert (late.status_code, late.headers["connection"]) == (200, "close")
    assert (await asked).status_code == 200
    os.kill(record.pid, signal.SIGTERM)
    while record.alive():
        await asyncio.sleep(0.02)


async def test_it_listens_no_more_and_still_finishes_what_is_in_flight(server: StandIn) -> None:
    record = await start(*OPTIONS)
    asked = await in_flight(server, record)
    os.kill(record.pid, signal.SIGTERM)
    with contextlib.suppress(httpx.TransportError):
        while True:
            async with httpx.AsyncClient() as client:
                await client.get(f"{record.url}/ready")
    assert server.gate is not None
    server.gate.set()
    assert (await asked).status_code == 200
    while record.alive():
        await asyncio.sleep(0.02)


async def test_the_end_waits_as_long_as_a_request_may_take(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[uvicorn.Config] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: (configs.append(self.config), sockets[0].close()))
    backend, listen = RemoteBackend(server_view("default"), 90.5), ListenAddress(port=0, translation_port=-1)
    settings = serve.FrontSettings(listen, GatewayOptions(timeout_s=90.5), serve.Access())
    starting = Starting("default", {}, replace=False)
    serve.serve("default", backend, settings, print, Kept(os.getpid(), starting.sockets(listen), 0), starting)
    starting.is_up()
    assert configs[0].timeout_graceful_shutdown == 92
    record = await start(*OPTIONS, "--timeout-s", "90.5")
    assert record.drain_s == 92.3
    patience: list[float] = []
    monkeypatch.setattr(psutil.Process, "wait", lambda self, timeout_s: patience.append(timeout_s))
    assert process.stop()
    assert patience[0] > 92.3


async def test_in_the_foreground_it_prints_the_page_and_exits_with_0(server: StandIn, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slotwise.cli", "gateway", *OPTIONS]
    running = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    assert running.stderr is not None
    assert b"now in front of torchserve" in await running.stderr.readline()  # before anybody can ask
    assert b"/index.html" in await running.stderr.readline()
    running.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(running.wait(), 90) == 0


async def test_a_client_that_hangs_up_in_the_queue_leaves_its_place(server: StandIn) -> None:
    record = await start(*OPTIONS, "--max-in-flight", "1", "--max-queued", "1", "--no-hedge")
    server.gate = asyncio.Event()
    first = asyncio.create_task(predict(record))
    while not server.seen:
        await asyncio.sleep(0.01)
    gone = asyncio.create_task(predict(record))
    while (await asyncio.to_thread(record.status))["models"][0]["queued"] < 1:
        await asyncio.sleep(0.01)
    assert (await predict(record)).status_code == 429
    gone.cancel()
    while (await asyncio.to_thread(record.status))["models"][0]["queued"] > 0:
        await asyncio.sleep(0.01)
    waiting = asyncio.create_task(predict(record))
    await asyncio.sleep(0.05)
    server.gate.set()
    assert (await first).status_code == 200
    assert (await waiting).status_code == 200
    assert len(server.seen) == 2


async def test_a_body_that_never_comes_costs_only_its_sender(server: StandIn) -> None:
    record = await start(*OPTIONS, "--timeout-s", "2")
    port = int(record.url.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /predictions/digits HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 504")
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /predictions/digits HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
    writer.close()
    statuses = [(await predict(record)).status_code]
    while statuses[-1] == 504:  # the machine stood still for so long
        statuses.append((await predict(record)).status_code)
    assert statuses[-1] == 200
    assert {seen.body for seen in server.seen} == {b"x"}


async def test_what_is_no_http_is_an_error_like_any_other(server: StandIn) -> None:
    record = await start(*OPTIONS)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(record.url.rsplit(":", 1)[1]))
    writer.write(b"no HTTP at all\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    error = json.loads(body)["error"]
    assert (error["code"], f"x-request-id: {error['request_id']}" in head.decode()) == (400, True)


async def test_the_gateway_may_come_before_its_server(server: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "default" / "server.json"
    text = file.read_text()
    file.unlink()
    record = await start(*OPTIONS)
    answer = await predict(record)
    assert (answer.status_code, json.loads(answer.content)["error"]["code"]) == (502, 502)
    file.write_text(text)
    while not (await asyncio.to_thread(record.status))["ready"]:
        await asyncio.sleep(0.05)
    assert (await predict(record)).status_code == 200


async def test_a_gateway_that_is_started_again_has_the_key_that_its_record_gave_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """`slotwise apply`, which has read it, would be told that it is not known while the gateway moves to another process."""
    about = {"url": "http://127.0.0.1:8000", "drain_s": 1.0, "key": "its own"}
    before = GatewayRecord.of_this_process(name="default", keeper=os.getpid(), **about)
    monkeypatch.setattr(serve, "running", lambda name: before)
    settings = serve.FrontSettings(ListenAddress(), GatewayOptions(), serve.Access())
    assert serve.in_place_of("default", settings, os.getpid(), None).own == "its own"


@pytest.mark.parametrize(("busy", "said"), [(0, {"ready": True}), (3, {"ready": True}), (99, "too many connections")])
def test_a_front_that_has_too_much_to_do_is_asked_again(monkeypatch: pytest.MonkeyPatch, busy: int, said: Any) -> None:
    full = httpx.Response(429, json={"error": {"message": "too many connections"}})
    answers = [*[full] * busy, httpx.Response(200, json={"ready": True})]
    monkeypatch.setattr(httpx, "get", lambda *args, **named: answers.pop(0))
    monkeypatch.setattr(process, "AGAIN_S", 0.0)
    if busy < process.TRIES:
        assert process.asked("http://127.0.0.1:1/status", {}) == said
    else:
        with pytest.raises(SlotwiseError, match=said):
            process.asked("http://127.0.0.1:1/status", {})
