"""The gateway's gRPC port: the Open Inference Protocol's service, on the gateway's own event loop.

A call's message is read only when its key is known and few others are being read (reading_places.py): gRPC holds a whole one in
memory. What is being read takes no more than bodies may take in all, and what has been read is counted among them. A client may
have as many calls at once as connections.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio

from slotwise.backends.interface import Refused
from slotwise.errors import SlotwiseError
from slotwise.frontend import replies
from slotwise.frontend.admission.reading_places import ReadingPlaces
from slotwise.frontend.certificates import CertificateFiles
from slotwise.frontend.forward import Forward
from slotwise.frontend.frontend import FRESH_S, Gateway
from slotwise.frontend.grpc import open_inference as open_inference_grpc
from slotwise.frontend.grpc.call import LONGEST_MESSAGE, Call
from slotwise.frontend.grpc.open_inference_messages import SERVICE, message_bytes, parsed_message
from slotwise.frontend.http.client_connections import ConnectionLimits
from slotwise.frontend.inference_request import InferenceRequest
from slotwise.frontend.protocols import open_inference, triton_extensions
from slotwise.frontend.protocols.each_record import answered
from slotwise.frontend.protocols.known_model import found_model, model_input
from slotwise.frontend.protocols.open_inference_outputs import InferRequest
from slotwise.frontend.protocols.records import ProtocolFault, failed_alike
from slotwise.frontend.protocols.routes import REPLY_COPIES

log = logging.getLogger("slotwise.gateway")

Messages = AsyncIterator[bytes]  # of one call: one
OPEN = {"ServerLive", "ServerReady"}  # need no key
FEWEST_READ = 4  # messages that may be read at once, however large they may be


class InferenceService:
    """Answers the calls of the service. Messages come and go as bytes. under_way: what was asked, also by who is gone."""

    def __init__(self, gateway: Gateway, limits: ConnectionLimits = ConnectionLimits()) -> None:
        self.gateway, self.forward = gateway, Forward(gateway)
        self.limits, self.trusted = limits, gateway.options.trusted_proxies
        count = max(FEWEST_READ, gateway.body_memory.max_bytes // gateway.backend.max_body_bytes)
        self._places = ReadingPlaces(count, limits.head_timeout_s)
        self._calls: Counter[str] = Counter()  # by client
        self.under_way: set[asyncio.Task[bytes]] = set()
        answers = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
        }
        self.methods = {name: self._method(name, answer) for name, answer in answers.items()}

    def handlers(self) -> Any:
        """What a server of grpcio needs. A call's one message is a stream to it, so that it is not read before it is wanted."""
        streams = {name: grpc.stream_unary_rpc_method_handler(method) for name, method in self.methods.items()}
        return grpc.method_handlers_generic_handler(SERVICE, streams)

    def _method(self, name: str, answer: Callable[[Call, Messages], Awaitable[bytes]]) -> Callable[..., Awaitable[bytes]]:
        async def method(messages: Messages, context: Any) -> bytes:
            call = Call(context, self.gateway.options.timeout_s)
            try:
                if self.gateway.keys and name not in OPEN:
                    call.key = self.gateway.keys.find(dict(call.headers))
                context.set_trailing_metadata((("x-request-id", call.identity),))
                with self._counted(call):
                    return await answer(call, messages)
            except ProtocolFault as fault:
                status, message, retry_after_s = fault.status, fault.message, 0
            except Refused as refused:
                status, message, retry_after_s = refused.status, refused.message, refused.retry_after_s
            except Exception:
                log.exception("%s %s", call.identity, name)
                status, message, retry_after_s = 500, replies.CRASH, 0
            log.info("%s %s %d %s", call.identity, name, status, message[:LONGEST_MESSAGE])
            await call.abort(status, message, retry_after_s)
            return b""  # not reached

        return method

    @contextmanager
    def _counted(self, call: Call) -> Iterator[None]:
        """One more call of its client, while it lasts. Raises Refused (429)."""
        client = call.client(self.trusted)
        if client and self._calls[client] >= self.limits.max_connections_per_address:
            raise Refused(429, "too many calls of this client at once", retry_after_s=1)
        self._calls[client] += 1
        try:
            yield
        finally:
            self._calls -= Counter([client])  # what comes to 0 is forgotten

    async def _read(self, messages: Messages, call: Call) -> bytes:
        """The call's message. Raises Refused (503, 504), or ProtocolFault where there is none."""
        client = call.client(self.trusted)
        connection = client if call.through(self.trusted) else call.connection
        try:
            async with asyncio.timeout(max(call.deadline - time.monotonic(), 0)), self._places.place(client, connection):
                async for message in messages:
                    return message
        except TimeoutError:
            raise Refused(504, "the deadline passed before the message had arrived") from None
        raise ProtocolFault("the call has no message")

    async def _server_live(self, call: Call, messages: Messages) -> bytes:
        return open_inference_grpc.plain("ServerLiveResponse", {"live": True})

    async def _server_ready(self, call: Call, messages: Messages) -> bytes:
        return open_inference_grpc.plain("ServerReadyResponse", {"ready": self.gateway.ready()})

    async def _server_metadata(self, call: Call, messages: Messages) -> bytes:
        return open_inference_grpc.plain("ServerMetadataResponse", open_inference.server())

    async def _model_ready(self, call: Call, messages: Messages) -> bytes:
        message = parsed_message("ModelReadyRequest", await self._read(messages, call))
        there = found_model(self.gateway, message.name, message.version) is not None
        return open_inference_grpc.plain("ModelReadyResponse", {"ready": there and self.gateway.model_ready(message.name)})

    async def _model_metadata(self, call: Call, messages: Messages) -> bytes:
        message = parsed_message("ModelMetadataRequest", await self._read(messages, call))
        await self.gateway.refresh(FRESH_S)
        model = found_model(self.gateway, message.name, message.version)
        if model is None:
            raise Refused(404, f"there is no model {message.name} {message.version}".strip())
        content = open_inference.metadata(message.name, [model.version], model_input(self.gateway, message.name))
        return open_inference_grpc.plain("ModelMetadataResponse", content)

    async def _model_config(self, call: Call, messages: Messages) -> bytes:
        message = parsed_message("ModelConfigRequest", await self._read(messages, call))
        config = await triton_extensions.config_of(self.gateway, call.key, message.name, message.version)
        return open_inference_grpc.model_config(config)

    async def _model_statistics(self, call: Call, messages: Messages) -> bytes:
        message = parsed_message("ModelStatisticsRequest", await self._read(messages, call))
        content = await triton_extensions.statistics_of(self.gateway, call.key, message.name, message.version)
        return open_inference_grpc.plain("ModelStatisticsResponse", content)

    async def _repository_index(self, call: Call, messages: Messages) -> bytes:
        message = parsed_message("RepositoryIndexRequest", await self._read(messages, call))
        models = await triton_extensions.index_of(self.gateway, call.key, message.ready)
        return open_inference_grpc.plain("RepositoryIndexResponse", {"models": models})

    async def _model_infer(self, call: Call, messages: Messages) -> bytes:
        """Where the client hangs up, what is at the server keeps its place there until it is answered, as over HTTP."""
        task = asyncio.create_task(self._infer(call, await self._read(messages, call)))
        self.under_way.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            call.gone.set()
            raise

    def _ended(self, task: asyncio.Task[bytes]) -> None:
        self.under_way.discard(task)
        if not task.cancelled():
            task.exception()  # was raised in the call, unless its client is gone

    async def _infer(self, call: Call, data: bytes) -> bytes:
        whole, work = InferenceRequest("", call.deadline, gateway=self.gateway), self.gateway.large_work
        try:
            whole.hold(data)
            del data
            async with work.turn(whole.memory_bytes):
                batch = await self._read_records(whole, call)
            name, model = whole.model, model_input(self.gateway, whole.model)
            answers = await answered(self.forward, whole, batch.records, call.gone)
            failed = failed_alike(answers)
            if failed:
                raise Refused(failed.status, failed.message, retry_after_s=int(failed.status in (429, 503)))
            live = self.gateway.models.get(name)
            version, size = whole.version or (live.version if live else ""), sum(len(answer.body) for answer in answers)
            async with work.turn(size):
                with whole.borrowed(REPLY_COPIES * size):
                    return await work.run(size, open_inference_grpc.reply, batch, name, version, model, answers)
        except ProtocolFault:
            whole.bill.pay_anyhow(1)
            raise
        finally:
            whole.release()

    async def _read_records(self, whole: InferenceRequest, call: Call) -> InferRequest:
        """What is asked of which model. Of the message nothing is kept."""
        work, size = self.gateway.large_work, whole.memory_bytes
        with whole.borrowed(await work.run(size, message_bytes, "ModelInferRequest", whole.body)):
            message = await work.run(size, parsed_message, "ModelInferRequest", whole.body)
            whole.ask(message.model_name)
            whole.read_head(call.scope(message.model_version))
            model = model_input(self.gateway, whole.model)
            with whole.borrowed(await work.run(size, open_inference_grpc.reading_bytes, message, model)):
                batch = await work.run(size, open_inference_grpc.request, message, model)
                batch.ask(whole.headers)
                del message
                whole.body = b""
        whole.hold_bytes(sum(len(record.body) for record in batch.records))
        return batch


def _configuration(files: CertificateFiles) -> grpc.ServerCertificateConfiguration:
    pair = (files.key.read_bytes(), files.certificate.read_bytes())
    return grpc.ssl_server_certificate_configuration([pair], files.client_ca)


class GrpcServer:
    """The gRPC port of a gateway. port: 0 takes a free one, which stands here once it is bound."""

    def __init__(
        self,
        gateway: Gateway,
        host: str,
        port: int,
        files: CertificateFiles | None = None,
        limits: ConnectionLimits = ConnectionLimits(),
    ) -> None:
        self.gateway, self.host, self.port, self.limits = gateway, host, port, limits
        self.credentials = None
        if files:
            self.credentials = grpc.dynamic_ssl_server_credentials(
                _configuration(files),
                lambda: _configuration(files) if files.changed() else None,  # looked at for every connection
                require_client_authentication=files.client_ca is not None,
            )

    async def bind(self) -> None:
        """Take the port. Raises SlotwiseError. A message may be as long as a body for the server that is there now."""
        await self.gateway.first_look()
        options = [
            ("grpc.so_reuseport", 1),  # a successor takes the port, too, before this one leaves it
            ("grpc.max_receive_message_length", self.gateway.backend.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.server_handshake_timeout_ms", round(self.limits.head_timeout_s * 1000)),
        ]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=self.limits.max_connections)
        self._server.add_generic_rpc_handlers((InferenceService(self.gateway, self.limits).handlers(),))
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        try:
            if self.credentials:
                self.port = self._server.add_secure_port(address, self.credentials)
            else:
                self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise SlotwiseError(f"gRPC cannot listen on {address}: {error}", "--grpc-port names another port") from error

    async def start(self) -> None:
        """Answer calls."""
        await self._server.start()

    async def stop(self, grace_s: float | None) -> None:
        """Take no new calls, and give those under way so long to end; None: cut them off."""
        await self._server.stop(grace_s)
