"""One gRPC port: it is taken, answers, and ends."""

from __future__ import annotations

import math

import grpc

from slotwise.errors import SlotwiseError
from slotwise.frontend.certificates import CertificateFiles
from slotwise.frontend.grpc.many_calls import ManyCalls
from slotwise.frontend.grpc.service import GrpcService
from slotwise.frontend.listening import with_port


class GrpcListener:
    """One port on which a service is offered. port: 0 takes a free one, which stands here once it is bound.

    files: the certificate for TLS; None: without TLS.
    """

    def __init__(self, service: GrpcService, host: str, port: int, files: CertificateFiles | None = None) -> None:
        self.service, self.host, self.port = service, host, port
        self.credentials = _credentials(files) if files else None

    def listen(self, max_message_bytes: int, hint: str, *, shared: bool) -> None:
        """Take the port. Raises SlotwiseError with that hint. shared: a successor takes it, too, before this one leaves."""
        limits = self.service.limits
        options = [
            ("grpc.so_reuseport", int(shared)),
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", -1),
            (
                "grpc.http2.bdp_probe",
                int(not self.host.startswith("127.")),
            ),  # windows grow for what is far away, and hold memory
            ("grpc.max_allowed_incoming_connections", limits.max_connections),
            ("grpc.server_handshake_timeout_ms", round(limits.head_timeout_s * 1000)),
            ("grpc.server_max_unrequested_time_in_server", math.ceil(self.service.gateway.options.timeout_s)),
        ]
        self._calls = ManyCalls(self.service.name, self.service.handlers(), options)
        server = self._calls.server
        address = with_port(self.host, self.port)
        try:
            if self.credentials:
                self.port = server.add_secure_port(address, self.credentials)
            else:
                self.port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise SlotwiseError(f"gRPC cannot listen on {address}: {error}", hint) from error

    async def start(self) -> None:
        """Answer calls."""
        await self._calls.start()

    async def stop(self, grace_s: float | None) -> None:
        """Take no new calls, and give those under way so long to end; None: cut them off.

        One that may have many requests takes no new one, and ends when those that it has are answered.
        """
        self.service.end_soon()
        await self._calls.server.stop(grace_s)


def _credentials(files: CertificateFiles) -> grpc.ServerCredentials:
    def configuration() -> grpc.ServerCertificateConfiguration:
        pair = (files.key.read_bytes(), files.certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], files.client_ca)

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        lambda: configuration() if files.changed() else None,  # looked at for every connection
        require_client_authentication=files.client_ca is not None,
    )
