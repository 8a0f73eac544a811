"""Calls of the management API that take long: they wait for each other, and nothing else waits for them."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import javaproperties
import pytest
from aiohttp import web

from slotwise.backends.exchange import Refused
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.served_model import ServedModel
from slotwise.backends.management.api import ManagementApi, PlainCall
from slotwise.backends.management.models import HostedModel, ModelTable
from slotwise.drop_in import own_host
from slotwise.drop_in.archive_source import DeployedArchives
from slotwise.drop_in.configuration import Configuration
from slotwise.drop_in.inference_api import DropInEntrance
from slotwise.drop_in.model_table import DropInModels
from slotwise.drop_in.own_host import CountedBackend, CountedVersions, DropInHost
from slotwise.drop_in.snapshots import Snapshots, models_of
from slotwise.host import model_host
from slotwise.host.model_host import OwnHost
from slotwise.host.model_versions import ModelVersions
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.supervisor import web_application
from tests.backends.test_served_model import asked, settings
from tests.client.test_management import record

__all__ = ["settings"]  # the fixture


def registered(name: str) -> HostedModel:
    """One version of it, of whose archive nobody asks anything."""
    nobody: Any = None
    return HostedModel(
        name=name,
        version="1",
        info=nobody,
        archive=f"{name}.mar",
        profile=nobody,
        batch_size=1,
        max_batch_delay_ms=0.0,
        min_workers=1,
        max_workers=1,
        response_timeout_s=1,
    )


def test_what_torchserve_registers_fits_into_a_profile() -> None:
    """Its numbers have no limits; of workers and requests in a batch this many are served."""
    profile = load_profile("cpu", environ={})
    many = dataclasses.replace(registered("m"), profile=profile, batch_size=5000, min_workers=300, response_timeout_s=2**31 - 1)
    found = dataclasses.replace(many, max_batch_delay_ms=2.0**31).as_registered
    assert (found.batch_size, found.initial_workers, found.response_timeout_s) == (5000, 300, 86_400)
    assert found.max_batch_delay_ms == 60_000


@asynccontextmanager
async def hosting(
    settings: ModelSettings, folder: Path, names: Sequence[str], patience_s: float
) -> AsyncIterator[DropInModels]:
    """A host that has these models, with a ready worker each."""
    loaded = ModelVersions(patience_s=patience_s)
    host: Any = OwnHost(loaded, record(folder, "slotwise"), 0)
    nobody: Any = None
    snapshots, configuration = Snapshots(folder / "config", {}), Configuration({"model_store": str(folder)})
    table = DropInModels(host, configuration, nobody, DeployedArchives(configuration, folder / "archives"), snapshots)
    for name in names:
        served = ServedModel(dataclasses.replace(settings, name=name))
        served.scale(1)
        loaded.add(served, default=True)
        table._models[name] = {"1": registered(name)}
        while not served.is_ready:
            await asyncio.sleep(0.02)
    try:
        yield table
    finally:
        await loaded.close()


def in_the_snapshot(folder: Path) -> list[str]:
    """The models that the next start would bring back."""
    newest = max((folder / "config").glob("*.cfg"))
    keys = javaproperties.loads(newest.read_text("latin-1"))
    return [one.name for one in models_of(keys["model_snapshot"], "model_snapshot")]


def test_as_many_calls_as_there_are_threads_do_not_block_each_other(
    settings: ModelSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has been told to go has gone only once a thread has seen its process end."""
    monkeypatch.setattr(model_host, "CALL_S", 5.0)

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        async with hosting(settings, tmp_path, "ab", 30.0) as table:
            api = ManagementApi(table)
            answers = await asyncio.gather(*(api.unregister(PlainCall(match_info={"name": name})) for name in "ab"))
            assert [answer.status for answer in answers] == [200, 200]
            assert table.all() == []

    asyncio.run(run())


def test_a_model_goes_although_its_requests_have_longer_than_a_call(
    settings: ModelSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_host, "CALL_S", 0.2)

    async def run() -> None:
        async with hosting(settings, tmp_path, "a", 30.0) as table:
            served = table.loaded.find("a")
            slow = asyncio.ensure_future(served.answer(asked("slow")))
            while not any(worker.busy for worker in served.queue.workers):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(table.unregister, "a", None)
            assert (await slow).body == b"answer to slow"
            assert in_the_snapshot(tmp_path) == []

    asyncio.run(run())


def test_one_whose_end_fails_does_not_come_back(
    settings: ModelSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_host, "CALL_S", 0.2)

    async def run() -> None:
        async with hosting(settings, tmp_path, "a", 0.1) as table:
            served = table.loaded.find("a")
            monkeypatch.setattr(served, "close", lambda patience_s: asyncio.sleep(60))
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(table.unregister, "a", None)
            assert in_the_snapshot(tmp_path) == []
            monkeypatch.undo()
            await served.close(5)

    asyncio.run(run())


@pytest.mark.parametrize("fails", [False, True])
def test_nobody_gets_packages_that_were_installed_for_another_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def register(self: OwnHost, model: Any, *, default: bool) -> None:
        if fails:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(OwnHost, "register", register)
    monkeypatch.setattr(own_host, "_install", lambda model, folder: folder.mkdir())

    async def run() -> None:
        nobody: Any = SimpleNamespace(model=None)
        configuration = Configuration({"install_py_dep_per_model": "true"})
        host = DropInHost(ModelVersions(), record(tmp_path, "slotwise"), configuration, nobody, nobody)
        model: Any = SimpleNamespace(id="a_1", info=SimpleNamespace(requirements="requirements.txt" if fails else ""))
        if not fails:
            host._packages(model).mkdir()  # of one that was not ended in order
        with pytest.raises(OSError, match="space") if fails else nullcontext():
            host.register(model, default=True)
        assert not host._packages(model).exists()

    asyncio.run(run())


def test_a_start_says_of_no_model_that_there_is_none() -> None:
    """Before, a probe heard that all is well, and requests to what was still being loaded were refused for good."""
    nobody: Any = None

    async def run() -> None:
        backend = CountedBackend(CountedVersions(numbers=nobody), nobody, 0, list)
        entrance = DropInEntrance(nobody, nobody, [])
        entrance.versions = backend.loaded
        for status, health in ((503, 500), (404, 200)):
            with pytest.raises(Refused) as refused:
                await backend.answer(asked("x"))
            assert (refused.value.status, entrance._health()[0]) == (status, health)
            backend.loaded.loading = False

    asyncio.run(run())


def test_invocations_wait_for_the_other_models() -> None:
    nobody: Any = None
    only: Any = SimpleNamespace(settings=registered("a"))
    entrance = DropInEntrance(nobody, nobody)
    entrance.versions = versions = ModelVersions({"a": {"1": only}}, loading=True)
    assert entrance._invoked(b"") == ""
    assert entrance._invoked(b"model_name=b") == "b"
    versions.loading = False
    assert entrance._invoked(b"") == "a"


def test_what_a_deployment_starts_with_is_registered_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, came = threading.Event(), list[str]()

    def register(self: ModelTable, archive: str, name: str | None = None, **settings: Any) -> HostedModel:
        begun.set()
        time.sleep(0.2 if archive == "first.mar" else 0)
        came.append(archive)
        return registered(archive)

    monkeypatch.setattr(ModelTable, "register", register)
    configuration = Configuration({"model_store": str(tmp_path), "load_models": "first.mar"})
    nobody: Any = None
    host: Any = SimpleNamespace(loaded=ModelVersions(loading=True), gpus=SimpleNamespace(names=()))
    table = DropInModels(host, configuration, nobody, nobody, None)
    with ThreadPoolExecutor(2) as threads:
        threads.submit(table.load)
        begun.wait(5)
        threads.submit(table.register, "second.mar").result(5)
    assert came == ["first.mar", "second.mar"]
    assert not host.loaded.loading


BAD_HEADS = {
    "a token with a line's end": b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer TOKEN\n\r\n\r\n",
    "a token with another sign": b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer TOKEN\1\r\n\r\n",
    "an address of letters": "POST /?url=https://u:TOKEN@h/\u00e9 HTTP/1.1\r\nHost: h\r\n\r\n".encode(),
    "a long address": b"POST /?sig=TOKEN&url=" + b"a" * 9000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
}


@pytest.mark.anyio
@pytest.mark.parametrize("head", BAD_HEADS.values(), ids=BAD_HEADS)
async def test_nothing_of_a_request_that_is_no_http_is_logged(head: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def fails(_: web.Request) -> web.Response:
        raise RuntimeError("our own fault")

    app, port = web.Application(), Ports.free().management
    app.router.add_get("/", fails)
    async with web_application(app, ("127.0.0.1", port)):
        for data, status in ((head, b"400"), (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", b"500")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            assert status in await reader.readline()
            writer.close()
    assert "TOKEN" not in caplog.text
    assert "it is no valid HTTP" in caplog.text
    assert "RuntimeError: our own fault" in caplog.text, "our own errors keep their traces"
