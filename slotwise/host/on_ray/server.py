"""The process of `slotwise serve --server ray`: it starts or joins Ray, and has the front, the queues and the management API.

    python -m slotwise.host.on_ray.server --state .slotwise/default

Requests go from here straight to the replicas; Ray's own proxy is not started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import psutil

from slotwise.backends.management.bearer import Tokens
from slotwise.backends.management.models import ModelTable
from slotwise.frontend.serve import LARGE_BLOCK_BYTES
from slotwise.host.local_backend import LocalBackend
from slotwise.host.model_versions import ModelVersions
from slotwise.host.on_ray.ray_model_host import RayModelHost
from slotwise.host.on_ray.replica_door import ReplicaDoor
from slotwise.host.opened_fronts import OpenedFronts
from slotwise.host.server import front, live_models, loop_factory
from slotwise.profiles import memory
from slotwise.server import default_versions, supervisor
from slotwise.server.ray import cluster as ray_cluster
from slotwise.server.ray.server import RayHost

if TYPE_CHECKING:
    from slotwise.server.record import ServerRecord


PATIENCE_S = 10.0  # for what is in hand when it ends; Ray has to end, too, within CLOSE_S
AGAIN_S = 5.0  # before it is said again where replicas come
LOOK_S = 1.0  # how often Ray's own processes are looked after

log = logging.getLogger("slotwise.host")


async def serve(record: ServerRecord) -> None:
    """Serve until SIGTERM."""
    os.environ["SLOTWISE_HOME"] = str(record.state_dir.parent)  # this process has another current folder than its commands
    ended = supervisor.end_at_signals()
    profile, tokens = record.effective_profile(), Tokens(record.state_dir)
    loaded = ModelVersions(patience_s=PATIENCE_S)
    loaded.expect(record.expected)
    ray = await asyncio.to_thread(RayHost, record, profile)
    supervisor.end_at_signals(ended)  # Ray has put its own handlers there
    host = RayModelHost(ray, loaded, record)
    models = ModelTable(host, record.model_store, profile, record.overrides, record.kind)
    models.note = partial(default_versions.note, record)

    def backend() -> LocalBackend:
        return LocalBackend(loaded, record, profile.max_request_bytes, lambda: live_models(models, record))

    logging.getLogger("slotwise").setLevel(logging.INFO)
    memory.give_back_blocks(LARGE_BLOCK_BYTES)
    telling = asyncio.create_task(host.watch())
    try:
        async with (
            ReplicaDoor(loaded, secrets.token_hex(32)).open(await asyncio.to_thread(ray.node_address)) as address,
            front(backend(), profile, record, tokens),
            OpenedFronts(record.name, loaded, backend).offered(record.tmp_dir),
            supervisor.management_api(models, record, tokens),
        ):
            await asyncio.to_thread(ray.hear_at, address)
            beside = [
                asyncio.create_task(say_again(lambda: ray.hear_at(address, AGAIN_S), AGAIN_S)),
                asyncio.create_task(end_with(ray_cluster.ended_part, ended)),
            ]
            await ended.wait()
            for task in beside:
                task.cancel()
    finally:
        telling.cancel()
        await closed(host.close)


async def closed(close: Callable[[], None], patience_s: float = supervisor.CLOSE_S) -> None:
    """Close it, in a thread of its own: all others may wait for a Ray that does not answer any more.

    Where a part of Ray has ended, this process ends then, whatever still waits, with all that it has started.
    """
    part, started = ray_cluster.ended_part(), psutil.Process().children(recursive=True)
    closing = asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), close)
    done, _ = await asyncio.wait({closing}, timeout=patience_s)
    if part:
        for process in started:  # Ray's agents, whose parent has ended, would keep its port for a while
            with contextlib.suppress(psutil.Error):
                process.kill()
        logging.shutdown()
        os._exit(1)
    if not done:
        raise TimeoutError("Ray does not end")
    closing.result()


async def end_with(ended_part: Callable[[], str], ended: asyncio.Event) -> None:
    """End this server once a part of Ray has ended: nothing is placed or replaced without it, and no call comes back."""
    while not (part := ended_part()):
        await asyncio.sleep(LOOK_S)
    log.error("Ray's %s has ended by itself, and is never started again: this server ends, too", part)
    ended.set()


async def say_again(say: Callable[[], None], every_s: float) -> None:
    """Say where replicas come again and again, in a thread: the actor that they ask forgets it when it is started again."""
    failed = False
    while True:
        await asyncio.sleep(every_s)
        try:
            await asyncio.to_thread(say)
            failed = False
        except Exception as error:
            if not failed:
                log.warning("replicas cannot be told where the front is: %.200r", error)
            failed = True


if __name__ == "__main__":
    supervisor.run(serve, loop_factory())
