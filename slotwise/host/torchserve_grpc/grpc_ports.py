"""The two ports of TorchServe's gRPC, open as long as the host is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from slotwise.backends.local.sequence_queue import SequenceLimits
from slotwise.backends.management.bearer import Tokens
from slotwise.backends.management.models import ModelTable
from slotwise.frontend.certificates import CertificateFiles
from slotwise.frontend.frontend import Gateway
from slotwise.frontend.grpc.listener import GrpcListener
from slotwise.host.model_versions import ModelVersions
from slotwise.host.torchserve_grpc.inference_api import InferenceApi
from slotwise.host.torchserve_grpc.management_service import ManagementService
from slotwise.profiles.ports import Ports
from slotwise.server.supervisor import CALLS_END_S

MANAGEMENT_BYTES = 64 * 1024  # of a message: names and numbers
GRACE_S = 1.0  # beyond what a request may take
HINT = "`slotwise serve --port 0` takes free ports, --port N counts from N"


@dataclass(frozen=True)
class OpenedGrpc:
    """Where gRPC listens, and whether models can be registered by it. certificate: for TLS on both ports; None: without.

    sequences: the names of the headers that carry a sequence's id, begin it and end it. told: as TorchServeService's.
    """

    inference_host: str = "127.0.0.1"
    management_host: str = "127.0.0.1"
    changeable: bool = True
    certificate: CertificateFiles | None = None
    sequences: tuple[str, str, str] = SequenceLimits.headers
    told: Callable[[str, str, int, float], None] | None = None


@asynccontextmanager
async def grpc_ports(
    gateway: Gateway,
    models: ModelTable,
    loaded: ModelVersions,
    tokens: Tokens,
    ports: Ports,
    opened: OpenedGrpc,
) -> AsyncIterator[None]:
    """Within, TorchServe's services answer on the ports for gRPC. Raises SlotwiseError where one of them is taken."""
    service = ManagementService(gateway, tokens, models, changeable=opened.changeable)
    api = InferenceApi(gateway, tokens, loaded, opened.sequences)
    api.told = service.told = opened.told
    inference = GrpcListener(api, opened.inference_host, ports.grpc_inference, opened.certificate)
    management = GrpcListener(service, opened.management_host, ports.grpc_management, opened.certificate)
    inference.listen(gateway.backend.max_body_bytes, HINT, shared=False)
    management.listen(MANAGEMENT_BYTES, HINT, shared=False)
    await inference.start()
    await management.start()
    try:
        yield
    finally:
        await asyncio.gather(inference.stop(gateway.options.timeout_s + GRACE_S), management.stop(CALLS_END_S))
