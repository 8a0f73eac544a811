"""Run a host of ours (Slotwise, Ray, Triton) in a process of its own, with TorchServe's management API in front of it.

    python -m slotwise.host.on_ray.server --state .slotwise/default

The process reads server.json and profile.json in that folder, and makes key_file.json. It ends at SIGTERM, and with it
everything that the host started.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import importlib.util
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise import log_format
from slotwise.errors import SlotwiseError, missing_package
from slotwise.server.processes import start_time
from slotwise.server.record import Kind, ServerRecord
from slotwise.server.triton import process as triton_process

if TYPE_CHECKING:
    from slotwise.backends.management.bearer import Tokens
    from slotwise.backends.management.models import ModelTable

HOSTS: dict[Kind, str] = {
    "ray": "slotwise.host.on_ray.server",
    "triton": "slotwise.server.triton.server",
    "slotwise": "slotwise.host.server",
}
PACKAGES: dict[Kind, tuple[str, ...]] = {
    "ray": ("ray", "aiohttp", "fastapi", "uvicorn", "prometheus_client"),
    "triton": ("aiohttp",),
    "slotwise": ("aiohttp", "fastapi", "uvicorn", "prometheus_client"),
}
CLOSE_S = 30.0
CALLS_END_S = 1.0  # calls of the management API that still wait for workers

Serve = Callable[[ServerRecord], Coroutine[Any, Any, None]]


def check_installed(kind: Kind) -> None:
    """Raise SlotwiseError where the host's package, or what the management API needs, is not installed."""
    if kind == "triton":
        triton_process.find()
    for needed in PACKAGES[kind]:
        if importlib.util.find_spec(needed) is None:
            raise missing_package(needed, f"--server {kind}")


def launch(record: ServerRecord, environ: Mapping[str, str]) -> ServerRecord:
    """Start the supervising process; returns the record with its pid and start time. environ: its whole environment."""
    with (record.state_dir / "server.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", HOSTS[record.kind], "--state", str(record.state_dir)],
            cwd=record.state_dir,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for us; we stop the server in order
        )
    return dataclasses.replace(record, pid=child.pid, started=start_time(child.pid))


def run(serve: Serve, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
    """Have `serve` run the host whose folder the command line names. A SlotwiseError is the log's last line; it ends with 1."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path, required=True)
    state_dir = parser.parse_args().state
    log_format.set_up("%(asctime)s [%(levelname)s] %(name)s - %(message)s", logging.WARNING)
    record = ServerRecord.load(state_dir)
    if record is None:
        sys.exit(f"there is no server.json in {state_dir}")
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(serve(record))
    except SlotwiseError as error:
        sys.exit(f"{error.message} ({error.hint})" if error.hint else error.message)


@asynccontextmanager
async def management_api(
    models: ModelTable, record: ServerRecord, tokens: Tokens, renewable: Collection[str] = ()
) -> AsyncIterator[None]:
    """Within, the management API answers on its port."""
    from slotwise.backends.management.api import application  # noqa: PLC0415  it imports aiohttp

    async with web_application(application(models, tokens, renewable), ("127.0.0.1", record.ports.management)):
        yield


@asynccontextmanager
async def web_application(app: Any, address: tuple[str, int]) -> AsyncIterator[None]:
    """Within, an application of aiohttp's answers on this address."""
    from aiohttp import web  # noqa: PLC0415  slow to import

    logging.getLogger("aiohttp.server").addFilter(without_what_was_read)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=CALLS_END_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, *address).start()
        yield
    finally:
        await runner.cleanup()


def without_what_was_read(entry: logging.LogRecord) -> bool:
    """Keep an entry of the log; that of a request which is no valid HTTP without its bytes, which may hold a token."""
    if entry.exc_info and type(entry.exc_info[1]).__module__ == "aiohttp.http_exceptions":
        entry.msg, entry.exc_info = f"{entry.msg}: it is no valid HTTP", None
    return True


async def done_before(ended: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Wait for the work; False where the end comes first: then it is left behind. Raises what the work raises."""
    working, ending = asyncio.ensure_future(work), asyncio.ensure_future(ended.wait())
    await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if working.done():
        working.result()
    return working.done()


def end_at_signals(ended: asyncio.Event | None = None) -> asyncio.Event:
    """The event that SIGTERM and SIGINT set from now on."""
    ended = ended or asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended
