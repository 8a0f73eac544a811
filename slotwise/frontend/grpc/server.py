"""The gateway's gRPC port: the Open Inference Protocol's service, on the gateway's own event loop."""

from __future__ import annotations

from slotwise.frontend.certificates import CertificateFiles
from slotwise.frontend.frontend import Gateway
from slotwise.frontend.grpc import open_inference as open_inference_grpc
from slotwise.frontend.grpc.call import Call
from slotwise.frontend.grpc.infer import Infer
from slotwise.frontend.grpc.infer_stream import STREAM_INFER, InferStream
from slotwise.frontend.grpc.listener import GrpcListener
from slotwise.frontend.grpc.open_inference_messages import MESSAGES, SERVICE
from slotwise.frontend.grpc.service import GrpcService, Messages
from slotwise.frontend.http.client_connections import ConnectionLimits
from slotwise.frontend.protocols import open_inference, triton_extensions
from slotwise.frontend.protocols.known_model import found_model, model_input, permitted_model, versions

OPEN = {"ServerLive", "ServerReady"}  # need no key


class InferenceService(GrpcService):
    """Answers the calls of the Open Inference Protocol."""

    def __init__(self, gateway: Gateway, limits: ConnectionLimits = ConnectionLimits()) -> None:
        self.infer = Infer(gateway)
        answers = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
            STREAM_INFER: self._model_stream_infer,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
        }
        super().__init__(gateway, limits, SERVICE, answers, (STREAM_INFER,))

    def let_in(self, method: str, call: Call) -> None:
        """Raise Refused where it needs a key and has none."""
        if self.gateway.keys and method not in OPEN:
            call.key = self.gateway.keys.find(dict(call.headers))

    async def _server_live(self, call: Call, messages: Messages) -> bytes:
        return open_inference_grpc.plain("ServerLiveResponse", {"live": True})

    async def _server_ready(self, call: Call, messages: Messages) -> bytes:
        return open_inference_grpc.plain("ServerReadyResponse", {"ready": self.gateway.ready()})

    async def _server_metadata(self, call: Call, messages: Messages) -> bytes:
        return open_inference_grpc.plain("ServerMetadataResponse", open_inference.server())

    async def _model_ready(self, call: Call, messages: Messages) -> bytes:
        message = MESSAGES.parsed("ModelReadyRequest", await self.read(messages, call))
        there = found_model(self.gateway, message.name, message.version) is not None
        return open_inference_grpc.plain(
            "ModelReadyResponse", {"ready": there and self.gateway.model_ready(message.name, message.version)}
        )

    async def _model_metadata(self, call: Call, messages: Messages) -> bytes:
        message = MESSAGES.parsed("ModelMetadataRequest", await self.read(messages, call))
        await permitted_model(self.gateway, call.key, message.name, message.version)
        takes = model_input(self.gateway, message.name, message.version)
        content = open_inference.metadata(message.name, versions(self.gateway, message.name), takes)
        return open_inference_grpc.plain("ModelMetadataResponse", content)

    async def _model_config(self, call: Call, messages: Messages) -> bytes:
        message = MESSAGES.parsed("ModelConfigRequest", await self.read(messages, call))
        config = await triton_extensions.config_of(self.gateway, call.key, message.name, message.version)
        return open_inference_grpc.model_config(config)

    async def _model_statistics(self, call: Call, messages: Messages) -> bytes:
        message = MESSAGES.parsed("ModelStatisticsRequest", await self.read(messages, call))
        content = await triton_extensions.statistics_of(self.gateway, call.key, message.name, message.version)
        return open_inference_grpc.plain("ModelStatisticsResponse", content)

    async def _repository_index(self, call: Call, messages: Messages) -> bytes:
        message = MESSAGES.parsed("RepositoryIndexRequest", await self.read(messages, call))
        models = await triton_extensions.index_of(self.gateway, call.key, message.ready)
        return open_inference_grpc.plain("RepositoryIndexResponse", {"models": models})

    async def _model_infer(self, call: Call, messages: Messages) -> bytes:
        return await self.to_its_end(call, self.infer.reply(call, await self.read(messages, call)))

    async def _model_stream_infer(self, call: Call, messages: Messages) -> None:
        await InferStream(self, self.infer, call, messages).answered()


class GrpcServer(GrpcListener):
    """The gRPC port of a gateway."""

    def __init__(
        self,
        gateway: Gateway,
        host: str,
        port: int,
        files: CertificateFiles | None = None,
        limits: ConnectionLimits = ConnectionLimits(),
    ) -> None:
        self.gateway, self.infer_service = gateway, InferenceService(gateway, limits)
        super().__init__(self.infer_service, host, port, files)

    async def bind(self) -> None:
        """Take the port. Raises SlotwiseError. A message may be as long as a body for the server that is there now."""
        await self.gateway.first_look()
        self.listen(self.gateway.backend.max_body_bytes, "--grpc-port names another port", shared=True)
