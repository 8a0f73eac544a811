"""A host that ends while a gateway is being opened in it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.backends.exchange import Refused
from slotwise.errors import SlotwiseError
from slotwise.host import gateway_link, opened_fronts
from slotwise.host.model_versions import ModelVersions
from slotwise.host.opened_fronts import OpenedFronts, address

FIRST = {"options": {}, "restarts": 0, "models": ["never"]}


def prepares(patch: pytest.MonkeyPatch, server: SimpleNamespace) -> None:
    """A host opens this server for any gateway."""
    patch.setattr(opened_fronts, "front_settings", lambda *_: None)
    patch.setattr(opened_fronts, "PreparedFront", lambda *_: SimpleNamespace(server=server))


@asynccontextmanager
async def opening(
    link: socket.socket, tmp_path: Path, message: dict[str, Any] | None
) -> AsyncIterator[tuple[OpenedFronts, asyncio.Task[None]]]:
    """A host, and its task for this link's gateway, which waits: for models that nobody registers, or for a first message."""
    nobody: Any = None
    fronts = OpenedFronts("default", ModelVersions(), lambda: nobody)
    async with fronts.offered(tmp_path):
        link.connect(address(tmp_path))
        if message is not None:
            socket.send_fds(link, [json.dumps(message).encode()], [])
        await asyncio.sleep(0.3)
        (task,) = fronts._open
        yield fronts, task


@pytest.mark.parametrize("message", [FIRST, None])
def test_a_host_waits_neither_for_models_nor_for_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: dict[str, Any] | None
) -> None:
    prepares(monkeypatch, SimpleNamespace(replaced=lambda: None, should_exit=False))

    async def run() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            async with asyncio.timeout(60), opening(link, tmp_path, message) as (_, task):
                pass
            assert task.done()
            link.settimeout(60)
            assert link.recv(1) == b""  # so the gateway knows, and asks the next host

    asyncio.run(run())


def test_what_nobody_registers_again_keeps_no_client_waiting() -> None:
    """Its own are told to try again, for a while: somebody may register it by hand."""
    versions, nobody = ModelVersions(), SimpleNamespace()
    versions.by_name["digits"] = {"1.0": SimpleNamespace(wanted=0)}  # type: ignore[dict-item]
    versions.expect(["digits"])

    async def run() -> None:
        fronts = OpenedFronts("default", versions, lambda: nobody)  # type: ignore[arg-type,return-value]
        await asyncio.wait_for(fronts._loaded(["digits", "gone"]), 1)

    asyncio.run(run())
    for name, status in (("gone", 503), ("never", 404)):
        with pytest.raises(Refused) as refused:
            versions.find(name)
        assert refused.value.status == status


@pytest.mark.parametrize("said", [b"replaced", None])
def test_where_its_link_has_gone_a_gateway_ends_with_its_last_connection(tmp_path: Path, said: bytes | None) -> None:
    """At once it would close a connection on which a client may just be asking."""
    done = list[str]()
    server = SimpleNamespace(replaced=lambda: done.append("replaced"), end=lambda: done.append("end"))

    async def run() -> None:
        nobody: Any = None
        ours, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        if said:
            link.send(said)
        link.close()
        front: Any = SimpleNamespace(server=server)
        with ours:
            await asyncio.wait_for(OpenedFronts("default", ModelVersions(), lambda: nobody)._hear(ours, front), 10)

    asyncio.run(run())
    assert set(done) == {"replaced"}


@pytest.mark.parametrize(
    ("said", "known"), [({"name": "default", "own": "its key"}, ("default", "its key")), ({}, ("default-b", ""))]
)
def test_a_gateway_keeps_its_name_and_its_key_in_a_host_that_was_started_by_another_name(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], known: tuple[str, str]
) -> None:
    """As `apply` starts one. Roll-outs stand under the gateway's name, and who has read its key goes on to ask by that."""
    seen = list[tuple[str, str]]()

    def prepared(name: str, backend: Any, settings: str, *_: Any) -> Any:
        seen.append((name, settings))
        raise SlotwiseError("enough is known")

    monkeypatch.setattr(opened_fronts, "front_settings", lambda options, restarts, own: own)
    monkeypatch.setattr(opened_fronts, "PreparedFront", prepared)

    async def run() -> None:
        nobody: Any = None
        ours, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, link:
            fronts = OpenedFronts("default-b", ModelVersions(), lambda: nobody)
            await fronts._run(ours, {"options": {}, "restarts": 0, "models": [], **said}, [])

    asyncio.run(run())
    assert seen == [known]


def test_a_gateway_that_moves_to_a_process_of_its_own_stays_until_that_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's port is no socket that is handed on: who connected meanwhile would be refused."""
    pids, done = [1], list[int]()
    monkeypatch.setattr(
        opened_fronts, "GatewayRecord", SimpleNamespace(load=lambda name: SimpleNamespace(pid=pids[-1])), raising=False
    )
    front: Any = SimpleNamespace(server=SimpleNamespace(replaced=lambda: done.append(pids[-1])))

    async def run() -> None:
        nobody: Any = None
        ours, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        link.send(b"moved")
        link.close()
        with ours:
            hearing = asyncio.create_task(OpenedFronts("default", ModelVersions(), lambda: nobody)._hear(ours, front))
            await asyncio.sleep(0.5)
            assert done == []
            pids.append(2)
            await asyncio.wait_for(hearing, 10)

    asyncio.run(run())
    assert set(done) == {2}


@pytest.mark.parametrize("said", [b"replaced", b"end", None])
def test_where_its_link_goes_while_models_load_no_gateway_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes | None
) -> None:
    """Nobody could end it, or tell it that another one has its place."""

    async def serve(sockets: object) -> None:
        raise AssertionError("it is opened")

    prepares(monkeypatch, SimpleNamespace(serve=serve))

    async def run() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            async with opening(link, tmp_path, FIRST) as (fronts, task):
                link.send(said) if said else link.close()
                await asyncio.wait((task,), timeout=60)
                assert task.done()
                assert not fronts._open
                assert task.exception() is None

    asyncio.run(run())


@pytest.mark.parametrize(("is_open", "ends"), [(False, False), (True, False), (True, True)])
def test_a_gateway_that_leaves_while_a_host_opens_it_is_opened_nowhere(
    monkeypatch: pytest.MonkeyPatch, is_open: bool, ends: bool
) -> None:
    """is_open: just at that moment it is there; then the host hears of it."""
    said, nobody = list[bytes](), SimpleNamespace(keeper=0, restarts=0, sockets=())
    monkeypatch.setattr(gateway_link, "running", lambda name: SimpleNamespace(kind="slotwise"))

    async def run() -> None:
        link: Any = gateway_link.GatewayLink("default", {}, print, nobody, nobody)  # type: ignore[arg-type]
        link.woken, link.loop = asyncio.Event(), asyncio.get_running_loop()
        may_open = asyncio.Event()

        async def opened(*_: object) -> Any:
            await may_open.wait()
            return SimpleNamespace(say=said.append)

        monkeypatch.setattr(gateway_link.HostConnection, "open", opened)
        opening = asyncio.create_task(link._opened())
        await asyncio.sleep(0.05)
        if is_open:
            may_open.set()
        link.end() if ends else link._replaced()
        assert await asyncio.wait_for(opening, 5) is None

    asyncio.run(run())
    assert said == ([] if not is_open else [b"end" if ends else b"replaced"])


def test_a_link_that_is_started_again_waits_for_the_next_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have died at once. The first time whoever starts it hears that there is no host."""
    tries = list[int]()

    async def opened(*_: object) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise FileNotFoundError(2, "No such file or directory")
        link.end()
        raise FileNotFoundError

    monkeypatch.setattr(gateway_link, "running", lambda name: SimpleNamespace(kind="slotwise"))
    monkeypatch.setattr(gateway_link.HostConnection, "open", opened)
    monkeypatch.setattr(gateway_link, "LOOK_S", 0.01)
    nobody: Any = SimpleNamespace(keeper=0, sockets=[], restarts=1)
    link = gateway_link.GatewayLink("default", {}, print, nobody, nobody)
    asyncio.run(link.run())
    assert len(tries) == 3
    nobody.restarts, tries[:] = 0, []
    link = gateway_link.GatewayLink("default", {}, print, nobody, nobody)
    with pytest.raises(SlotwiseError, match="does not open the gateway"):
        asyncio.run(link.run())
