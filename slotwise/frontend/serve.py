"""Run the gateway: two ports and perhaps gRPC's, one event loop, and an orderly end.

On SIGTERM or Ctrl-C readiness goes off and answers say `connection: close`; after `drain_delay_s`, in which a load
balancer notices, no connection is accepted any more; what is in flight is finished, which takes as long as a request
may take; then the process ends. A second signal ends it at once. A signal that comes before the page's address was printed
ends it at once, too, and KeyboardInterrupt is raised. Where a successor has taken its sockets (slotwise.frontend.handover), it
accepts no connection, and ends with the last one that it has.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import math
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise import log_format
from slotwise.backends.interface import Backend
from slotwise.errors import SlotwiseError
from slotwise.frontend.admission.keys import KeyFile
from slotwise.frontend.certificates import CertificateFiles
from slotwise.frontend.draining import KEEP_ALIVE_S, DrainingServer
from slotwise.frontend.frontend import Gateway, GatewayOptions
from slotwise.frontend.http.allowed_hosts import AllowedHosts
from slotwise.frontend.http.app import build_app
from slotwise.frontend.http.client_connections import ConnectionLimits, OpenConnections, within_open_files
from slotwise.frontend.http.handshakes import FrontConfig
from slotwise.frontend.keeper import Kept
from slotwise.frontend.listening import ListenAddress, with_port
from slotwise.frontend.observing.watching import WatchOptions
from slotwise.frontend.process import GatewayRecord, already_running, running
from slotwise.frontend.rollout.record import load_all
from slotwise.frontend.succession import Starting
from slotwise.interrupts import handed_to, settle
from slotwise.log_format import LogFormat
from slotwise.profiles import memory

if TYPE_CHECKING:
    from slotwise.frontend.grpc.server import GrpcServer

LARGE_BLOCK_BYTES = 256 * 1024
LINES = "%(asctime)s %(levelname)s %(message)s"


@dataclass(frozen=True)
class Access:
    """Who is let in, and how.

    keys: a file of keys. public: what needs none of them: metrics, status, docs. tls_client_ca: who signs the certificates that
    clients have to show; None: they need none. hosts: the names that the gateway goes by besides loopback's; where it listens
    beyond loopback and none is given, by any. headers: on every answer. connections: what clients may do at all.
    """

    keys: Path | None = None
    public: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    hosts: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)

    def check(self) -> None:
        """Raise SlotwiseError where TLS would fail."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise SlotwiseError("--tls-cert and --tls-key belong together", "both are PEM files")
        if self.tls_client_ca and not self.tls_cert:
            raise SlotwiseError("--tls-client-ca needs --tls-cert and --tls-key", "clients show certificates over TLS only")
        self.certificate()

    def allowed_hosts(self, listen: ListenAddress) -> AllowedHosts | None:
        """The names that it goes by; None: any."""
        return AllowedHosts((*self.hosts, listen.host)) if self.hosts or _loopback(listen.host) else None

    def certificate(self) -> CertificateFiles | None:
        """The files for TLS, None where there are none. Raises SlotwiseError where they cannot be used."""
        return CertificateFiles(self.tls_cert, self.tls_key, self.tls_client_ca) if self.tls_cert and self.tls_key else None


@dataclass(frozen=True)
class FrontSettings:
    """What a front is opened with.

    on_demand: as in Gateway. restarts: how many have died before this one. log: its form. own: the key that it knows itself, of
    the one whose place it takes; "": a new one.
    """

    listen: ListenAddress
    options: GatewayOptions
    access: Access
    on_demand: bool = False
    restarts: int = 0
    watch: WatchOptions = field(default_factory=WatchOptions)
    log: LogFormat | None = None
    own: str = ""

    @property
    def drain_s(self) -> float:
        """How long it may take after SIGTERM, to finish what is in flight."""
        return self.listen.drain_delay_s + _finish_s(self.options)


class PreparedFront:
    """A front that is ready to be run on these sockets: its gateway, and its server.

    own: the key that it knows itself, "" where everybody is let in. is_up(): called once it listens. Raises SlotwiseError where
    a file is no good.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        settings: FrontSettings,
        sockets: Sequence[socket.socket],
        is_up: Callable[[], None],
        starting: Starting | None = None,
    ) -> None:
        listen, access = settings.listen, settings.access
        self.own = (settings.own or secrets.token_urlsafe(32)) if access.keys or access.tls_client_ca else ""
        keys = KeyFile(access.keys, self.own) if access.keys else None
        access.check()
        self.gateway = Gateway(backend, settings.options, keys, settings.on_demand, lambda: load_all(name))
        self.gateway.metrics.restarts.set(settings.restarts)
        self.gateway.observer = settings.watch.observer(settings.options.trusted_proxies, lambda: self.gateway.models)
        app = build_app(self.gateway, access.public, access.allowed_hosts(listen), self.own if access.tls_client_ca else "")
        self.config = http_config(app, self.gateway, access)
        self.host = "127.0.0.1" if listen.host in ("0.0.0.0", "::") else listen.host
        self.url = f"{'https' if access.tls_cert else 'http'}://{with_port(self.host, sockets[0].getsockname()[1])}"
        self.certificate = str(access.tls_cert.resolve()) if access.tls_cert else ""
        self._grpc = _grpc_server(self.gateway, listen, access)
        self._watching = list[asyncio.Task[None]]()
        self._is_up, self._beyond_loopback = is_up, not _loopback(listen.host)
        self.server = DrainingServer(self.config, self.gateway, listen.drain_delay_s, self._up, self._grpc, sockets, starting)

    @property
    def grpc(self) -> str:
        """Host and port of its gRPC, once it is up; "" where it has none."""
        return with_port(self.host, self._grpc.port) if self._grpc else ""

    @property
    def warning(self) -> str:
        """What whoever opened it has to know; "" where there is nothing."""
        if self.own or not self._beyond_loopback:
            return ""
        return f"whoever reaches {self.url} can ask every model and read /status and /metrics: --keys FILE asks for a key"

    def _up(self) -> None:
        if self.config.files:
            self._watching.append(asyncio.get_running_loop().create_task(self.config.files.watch()))
        self._is_up()


def serve(
    name: str,
    backend: Backend,
    settings: FrontSettings,
    say: Callable[[str], None],
    kept: Kept,
    starting: Starting,
) -> None:
    """Run until a signal. Raises SlotwiseError where a gateway of that name runs, or a file is no good.

    kept: what the keeper gives that has started this process. starting: it may take the place of one that runs.
    """
    settings = in_place_of(name, settings, kept.keeper, starting)
    log_format.set_up(LINES, logging.INFO, settings.log)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    memory.give_back_blocks(LARGE_BLOCK_BYTES)
    faulthandler.enable()  # where C code ends the process, the log says where

    record: GatewayRecord

    def is_up() -> None:
        nonlocal record
        record = replace(record, grpc=front.grpc, handover=front.server.handover.address)
        record.save(settings.restarts)
        starting.is_up()
        if front.warning:
            say(front.warning)
        say(record.listening())
        memory.leave_alone_what_is_there()

    front = PreparedFront(name, backend, settings, kept.sockets, is_up, starting)
    record = GatewayRecord.of_this_process(
        name=name,
        url=front.url,
        drain_s=settings.drain_s,
        key=front.own,
        certificate=front.certificate,
        keeper=kept.keeper,
        options=starting.options,
    )
    with handed_to(front.server.end):
        try:
            front.server.run(sockets=kept.sockets)
        finally:
            record.forget()
        if front.server.was_up:
            settle()


def in_place_of(name: str, settings: FrontSettings, keeper: int, starting: Starting) -> FrontSettings:
    """The settings, with the ports and the key of the one whose place it takes. Raises SlotwiseError where another one runs."""
    other = running(name)
    if other is not None and other.keeper == keeper != 0:  # who asks for its state has read its record before
        return replace(settings, listen=replace(settings.listen, grpc_port=other.grpc_port), own=other.key)
    if other is not None and not starting.predecessor:
        raise already_running(other)
    return settings


def _finish_s(options: GatewayOptions) -> int:
    """How long what is in flight may take: with the grace that the server's own 504 has."""
    return math.ceil(options.timeout_s) + 1


def http_config(app: Any, gateway: Gateway, access: Access) -> FrontConfig:
    """How uvicorn serves a gateway's application: with our own reader of HTTP and its limits, with TLS where it is wanted."""
    connections = OpenConnections(within_open_files(access.connections), gateway.options.trusted_proxies)
    return FrontConfig(
        app,
        connections,
        access.certificate(),
        ws="none",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        headers=list(access.headers),
        proxy_headers=False,  # uvicorn's own belief in them holds on loopback: --trusted-proxy says whom to believe
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_finish_s(gateway.options),
    )


def _grpc_server(gateway: Gateway, listen: ListenAddress, access: Access) -> GrpcServer | None:
    if listen.grpc_port < 0:
        return None
    from slotwise.frontend.grpc.server import GrpcServer  # noqa: PLC0415  grpcio takes memory, and is seldom wanted

    return GrpcServer(gateway, listen.host, listen.grpc_port, access.certificate(), access.connections)


def _loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
