"""The process of `slotwise serve --server slotwise`: front, queues, management API and metrics on one event loop.

    python -m slotwise.host.server --state .slotwise/default

Requests to models need the inference token of key_file.json, as on TorchServe.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web

from slotwise.backends.interface import Refused
from slotwise.backends.management import bearer
from slotwise.backends.management.bearer import Tokens
from slotwise.backends.management.descriptions import described
from slotwise.backends.management.models import ApiError, ModelTable
from slotwise.client.live_model import LiveModel, live_model
from slotwise.frontend.frontend import Gateway, GatewayOptions
from slotwise.frontend.http.access import PROBES
from slotwise.frontend.http.app import build_app
from slotwise.frontend.http.handshakes import FrontServer
from slotwise.frontend.inference_request import Scope
from slotwise.frontend.metrics import printed
from slotwise.frontend.observing.watching import from_environment
from slotwise.frontend.serve import LARGE_BLOCK_BYTES, Access, http_config
from slotwise.host.local_backend import LocalBackend
from slotwise.host.model_host import OwnHost
from slotwise.host.model_versions import ModelVersions
from slotwise.host.opened_fronts import OpenedFronts
from slotwise.profiles import memory
from slotwise.profiles.ports import Ports
from slotwise.server import default_versions, supervisor

if TYPE_CHECKING:
    from slotwise.profiles.profile import Profile
    from slotwise.server.record import ServerRecord

log = logging.getLogger("slotwise.host")

UP_S = 10.0
BACKLOG = 2048


def check_token(tokens: Tokens, scope: Scope) -> None:
    """Let in who brings the inference token, as TorchServe does; probes need none."""
    brought = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    if scope["path"] not in PROBES and not tokens.opens("inference", brought):
        raise Refused(bearer.STATUS, bearer.MESSAGE)


async def serve(record: ServerRecord) -> None:
    """Serve until SIGTERM."""
    os.environ["SLOTWISE_HOME"] = str(record.state_dir.parent)  # this process has another current folder than its commands
    ended = supervisor.end_at_signals()
    profile, tokens = record.effective_profile(), Tokens(record.state_dir)
    loaded = ModelVersions()
    loaded.expect(record.expected)
    host = OwnHost(loaded, record, models_memory_bytes=profile.models_memory_mb << 20)
    watching = [asyncio.create_task(each.watch()) for each in (host.idle, host.load)]
    models = ModelTable(host, record.model_store, profile, record.overrides, record.kind)
    models.note = partial(default_versions.note, record)

    def backend() -> LocalBackend:
        return LocalBackend(loaded, record, profile.max_request_bytes, lambda: live_models(models, record))

    logging.getLogger("slotwise").setLevel(logging.INFO)
    faulthandler.enable()  # where C code ends the process, the log says where
    memory.give_back_blocks(LARGE_BLOCK_BYTES)
    try:
        async with (
            front(backend(), profile, record, tokens) as gateway,
            metrics(gateway, record),
            OpenedFronts(record.name, loaded, backend).offered(record.tmp_dir),
            grpc_services(gateway, models, loaded, tokens, record.ports),
            supervisor.management_api(models, record, tokens, ("management", "inference")),
        ):
            memory.leave_alone_what_is_there()
            await ended.wait()
    finally:
        for each in watching:
            each.cancel()
        await asyncio.to_thread(host.close)


@asynccontextmanager
async def front(backend: LocalBackend, profile: Profile, record: ServerRecord, tokens: Tokens) -> AsyncIterator[Gateway]:
    """Within, the front answers on the port for inference: what gateways answer, and by the same limits."""
    wait_s, queued = backend.loaded.response_timeout_s, profile.job_queue_size
    options = GatewayOptions(timeout_s=float(profile.response_timeout_s), queued=queued, model_wait_s=wait_s)
    gateway = Gateway(backend, options)
    gateway.observer = from_environment().observer(options.trusted_proxies, lambda: gateway.models)
    app = build_app(gateway)
    app.checks.append(partial(check_token, tokens))
    async with listening(app, gateway, ("127.0.0.1", record.ports.inference), Access()):
        yield gateway


@asynccontextmanager
async def listening(app: Any, gateway: Gateway, address: tuple[str, int], access: Access) -> AsyncIterator[None]:
    """Within, a front answers on this address, over TLS where `access` has a certificate."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    taken = socket.create_server(address, family=family, backlog=BACKLOG)
    server = FrontServer(http_config(app, gateway, access))
    serving = asyncio.create_task(server.serve(sockets=[taken]))
    try:
        async with asyncio.timeout(UP_S):
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await serving


@asynccontextmanager
async def metrics(gateway: Gateway, record: ServerRecord) -> AsyncIterator[None]:
    """Within, Prometheus reads the front's and the models' numbers on the port for metrics."""

    async def answer(request: web.Request) -> web.Response:
        text, kind = printed(gateway.metrics.registry, request.headers.get("accept", ""))
        return web.Response(body=text, headers={"content-type": kind})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    async with supervisor.web_application(app, ("127.0.0.1", record.ports.metrics)):
        yield


@asynccontextmanager
async def grpc_services(
    gateway: Gateway, models: ModelTable, loaded: ModelVersions, tokens: Tokens, ports: Ports, **opened: Any
) -> AsyncIterator[None]:
    """Within, TorchServe's gRPC is answered on its ports. Without grpcio there is none, which the log says.

    opened: what an OpenedGrpc says.
    """
    try:
        from slotwise.host.torchserve_grpc.grpc_ports import OpenedGrpc, grpc_ports  # noqa: PLC0415  optional, the extra gateway
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("grpc", "google"):
            raise
        log.warning("no gRPC on %d and %d: %s", ports.grpc_inference, ports.grpc_management, error)
        yield
        return
    async with grpc_ports(gateway, models, loaded, tokens, ports, OpenedGrpc(**opened)):
        yield


def live_models(models: ModelTable, record: ServerRecord) -> list[LiveModel]:
    """Every version of every model as it is now, of each the default first."""
    lives = []
    for default in models.all():
        with contextlib.suppress(ApiError, Refused):  # it has gone meanwhile
            for model in models.versions(default.name):
                lives.append(live_model(described(model, models.host.describe(model)), record))
    return lives


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop; None: Python's own."""
    try:
        import uvloop  # noqa: PLC0415  where it is installed
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    supervisor.run(serve, loop_factory())
