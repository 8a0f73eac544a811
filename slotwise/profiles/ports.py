"""The ports of one server, on loopback."""

from __future__ import annotations

import secrets
import socket
import sys
from collections import deque
from dataclasses import dataclass, fields

from slotwise.errors import SlotwiseError

GRPC_BELOW = 1010  # as far below the port of inference TorchServe has gRPC's
FREE = range(20_000, 32_000)  # below the ports that outgoing connections take; MMS refuses any above 32 766
MOST_CLAIMS = 40  # ports that one process keeps others from choosing: those that it chose last

_claims = deque[socket.socket]()


@dataclass(frozen=True)
class Ports:
    """Where a server listens. MMS has no metrics port and no gRPC."""

    inference: int = 8080
    management: int = 8081
    metrics: int = 8082
    grpc_inference: int = 7070
    grpc_management: int = 7071

    @classmethod
    def at(cls, base: int) -> Ports:
        """Inference at `base`, the others at TorchServe's usual distances. base 0: any free ones.

        Raises SlotwiseError for one that leaves gRPC no port.
        """
        if not base:
            return cls.free()
        if base <= GRPC_BELOW:
            raise SlotwiseError(
                f"--port {base} leaves no port for gRPC, which listens {GRPC_BELOW} below it",
                f"--port {GRPC_BELOW + 1} is the lowest; --port 0 takes free ports",
            )
        return cls(base, base + 1, base + 2, base - GRPC_BELOW, base - GRPC_BELOW + 1)

    @classmethod
    def free(cls) -> Ports:
        """Five ports that nobody listens on now, and that no other process has chosen for a server that is starting."""
        ports: list[int] = []
        while len(ports) < len(fields(cls)):
            port = secrets.choice(FREE)
            if port not in ports and problem(port) is None and _claimed(port):
                ports.append(port)
        return cls(*ports)


def _claimed(port: int) -> bool:
    """Have this port until this process ends, as far as others choose theirs here; False where somebody has it.

    True everywhere but on Linux, where a socket's name needs no file.
    """
    if sys.platform != "linux":
        return True
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0slotwise-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    if len(_claims) > MOST_CLAIMS:
        _claims.popleft().close()
    return True


def problem(port: int) -> str | None:
    """Why nobody can listen on this port now; None where one can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            return str(error)
    return None


def check_free(ports: Ports) -> None:
    """Raise SlotwiseError where somebody listens on one of them."""
    for field in fields(ports):
        port = getattr(ports, field.name)
        reason = problem(port)
        if reason:
            raise SlotwiseError(
                f"port {port} ({field.name.replace('_', ' ')}) cannot be used: {reason}",
                "`slotwise serve --port 0` takes free ports, --port N counts from N",
            )
