"""Take the ports that the gateway listens on. Imports little: the keeper does this before the gateway's own process exists."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from slotwise.errors import SlotwiseError


@dataclass(frozen=True)
class ListenAddress:
    """Where the gateway listens: the page and REST on `port`, the same on `translation_port`, gRPC on `grpc_port` (-1: not)."""

    host: str = "127.0.0.1"
    port: int = 8000
    translation_port: int = 9527
    drain_delay_s: float = 1.0
    grpc_port: int = -1


def bound(listen: ListenAddress, taken_over: Sequence[socket.socket] = (), grpc_port: int = -1) -> list[socket.socket]:
    """The sockets of HTTP, bound; that gRPC's port can be bound is seen, too. Raises SlotwiseError.

    taken_over: sockets of the gateway whose place this one takes; those that nobody asks for are closed. grpc_port: its gRPC's.
    """
    ports = [port for port in (listen.port, listen.translation_port) if port >= 0]
    if not ports:
        raise SlotwiseError(
            "the gateway has no port: --port and --translation-port are both below 0", "--port 0 takes a free one"
        )
    if ports[0] == ports[-1] > 0:
        ports = ports[:1]  # the one is the other
    before = {one.getsockname()[:2]: one for one in taken_over}
    sockets = []
    for port in ports:
        address = _numeric(listen.host), port
        sockets.append(before.pop(address) if address in before else _bind(listen.host, port))
    for unused in before.values():
        unused.close()
    if listen.grpc_port > 0 and listen.grpc_port != grpc_port:
        _bind(listen.host, listen.grpc_port).close()  # grpcio binds it itself, and says less where it cannot
    return sockets


def listen_on(one: socket.socket, backlog: int) -> None:
    """Listen on a socket of `bound`. Raises SlotwiseError where another program, which had bound its port, too, was quicker."""
    try:
        one.listen(backlog)
    except OSError as error:
        host, port, *_ = one.getsockname()
        raise _cannot_listen(host, port, error) from error


def with_port(host: str, port: int) -> str:
    """Both, as they stand in an address: one of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _numeric(host: str) -> str:
    """The host as a socket tells it."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET6 if ":" in host else socket.AF_INET)[0][4][0])
    except OSError:
        return host


def _bind(host: str, port: int) -> socket.socket:
    if not host:  # an empty variable of a script: the system would take it for every address
        raise SlotwiseError("--host is empty", "127.0.0.1 is this machine alone, 0.0.0.0 lets other machines in")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise _cannot_listen(host, port, error) from error
    listening.set_inheritable(True)
    return listening


def _cannot_listen(host: str, port: int, error: OSError | OverflowError) -> SlotwiseError:
    return SlotwiseError(
        f"the gateway cannot listen on {host}:{port}: {error}", "--port, --translation-port, --grpc-port name others"
    )
