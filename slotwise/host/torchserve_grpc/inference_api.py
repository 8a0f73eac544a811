"""TorchServe's InferenceAPIsService: its calls go the way of HTTP's to the models, with the same limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from slotwise.backends.exchange import CLIENT_GONE, BackendRequest, RawHeaders
from slotwise.backends.interface import Refused
from slotwise.backends.management.bearer import Tokens
from slotwise.frontend.events.event_stream import EventStream
from slotwise.frontend.forward import Forward
from slotwise.frontend.frontend import Gateway
from slotwise.frontend.grpc.call import Call
from slotwise.frontend.grpc.call_messages import CallMessages
from slotwise.frontend.grpc.service import Messages
from slotwise.frontend.inference_request import InferenceRequest
from slotwise.frontend.replies import ClientReply, message_of
from slotwise.host.model_versions import ModelVersions
from slotwise.host.torchserve_grpc.form_body import body_of
from slotwise.host.torchserve_grpc.piece_messages import PieceMessages
from slotwise.host.torchserve_grpc.sequence_call import BOTH_WAYS, HeadersOf, SequenceCall
from slotwise.host.torchserve_grpc.torchserve_messages import ANSWERED, ASKED, INFERENCE, INFERENCE_SERVICE
from slotwise.host.torchserve_grpc.torchserve_service import CallRefused, TorchServeService, class_of

REPLY_COPIES = 2  # of an answer's body, while its message is written
NO_SEQUENCE_ID = (
    "sequence_id is for StreamPredictions2: name the sequence in the call's metadata here, by the header that HTTP has"
)
LONGEST_NAME = 128  # of what a refusal repeats


def _no_sequence(message: Any) -> RawHeaders:
    """No headers. Raises CallRefused where the message names a sequence: not read, it would be answered from another state."""
    if message.sequence_id:
        raise CallRefused(400, NO_SEQUENCE_ID, class_of("BadRequestException"))
    return []


class InferenceApi(TorchServeService):
    """Answers Ping and predictions. loaded: the models that there are. sequences: as SequenceCall's names."""

    def __init__(self, gateway: Gateway, tokens: Tokens, loaded: ModelVersions, sequences: tuple[str, str, str]) -> None:
        self.forward, self.loaded, self.sequences = Forward(gateway), loaded, sequences
        answers = {
            "Ping": self._ping,
            "Predictions": self._predictions,
            "StreamPredictions": self._stream_predictions,
            BOTH_WAYS: self._both_ways,
        }
        super().__init__(gateway, tokens, "inference", INFERENCE_SERVICE, answers, ("StreamPredictions", BOTH_WAYS))

    @contextmanager
    def _counted(self, call: Call) -> Iterator[None]:
        """See GrpcService; where its message is not read, the sequence that its metadata were to begin is over."""
        try:
            with super()._counted(call):
                yield
        except BaseException:
            if not call.asked:
                self._unread(call.headers)
            raise

    def _unread(self, headers: RawHeaders) -> None:
        """A message with these headers could not be read: nobody knows for which model it was."""
        told = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        for name in self.loaded.by_name:
            self.gateway.backend.not_run(BackendRequest(name, 0.0, headers=told))

    async def _ping(self, call: Call, messages: Messages) -> bytes:
        """Healthy: a model is ready, or there is to be none yet."""
        healthy = not self.loaded.loading and (self.gateway.ready() or not self.loaded.by_name)
        health = "Healthy" if healthy else "Unhealthy"
        answer = INFERENCE.classes["TorchServeHealthResponse"](health=json.dumps({"status": health}, indent=2))
        written: bytes = answer.SerializeToString()
        return written

    async def _both_ways(self, call: Call, messages: Messages) -> None:
        await SequenceCall(self, self._predict, call, messages, self.sequences).answered()

    async def _predictions(self, call: Call, messages: Messages) -> bytes | None:
        return await self.to_its_end(call, self._predict(call, await self.read(messages, call)))

    async def _stream_predictions(self, call: Call, messages: Messages) -> bytes | None:
        """A message a piece; one, of the whole answer, where the model does not stream."""
        answer = CallMessages()

        async def asked(data: bytes) -> bytes | None:
            try:
                return await self._predict(call, data, PieceMessages(answer))
            finally:
                answer.close()

        return await self.to_its_end(call, asked(await self.read(messages, call)), lambda: answer.write_to(call))

    async def _predict(
        self, call: Call, data: bytes, pieces: PieceMessages | None = None, headers_of: HeadersOf = _no_sequence
    ) -> bytes | None:
        """The message of the answer; None where all of it is in `pieces`."""
        request = InferenceRequest("", call.deadline, gateway=self.gateway, client_deadline=call.client_deadline)
        call.left = lambda: request.leave()
        try:
            request.hold(data)
            del data
            version, headers = await self._take_apart(request, headers_of)
            scope, body = call.scope(version), request.body
            scope["headers"] += headers
            call.asked = True
            opened = pieces.opened if pieces else EventStream.asked
            reply = await self.forward.reply(request, scope, call.gone.wait, body, opened)
            del body
            if pieces and pieces.whole:
                return None
            return await self._written(request, self._answer(request, version, reply), pieces.sequence if pieces else "")
        except BaseException:
            if pieces and pieces.sequence and not call.asked:  # it may have been to begin it
                id_, start, _ = self.sequences
                self._unread([(id_.encode(), pieces.sequence.encode("latin-1", "replace")), (start.encode(), b"true")])
            raise
        finally:
            request.release()

    async def _take_apart(self, request: InferenceRequest, headers_of: HeadersOf) -> tuple[str, RawHeaders]:
        """The version and the message's own headers; the body is from now on that of its inputs. Raises ProtocolFault."""
        work, size = self.gateway.large_work, request.memory_bytes
        async with work.turn(size):
            with request.borrowed(await work.run(size, INFERENCE.memory_bytes, ASKED, request.body)):
                message = await work.run(size, INFERENCE.parsed, ASKED, request.body)
                if not message.model_name:
                    raise CallRefused(
                        400, "Parameter model_name is required.", "BadRequestException.()", grpc.StatusCode.INTERNAL
                    )
                headers = headers_of(message)
                request.ask(message.model_name)
                content_type, request.body = await work.run(size, body_of, message.input)
        if content_type:
            headers.append((b"content-type", content_type.encode("ascii")))
        return message.model_version, headers

    def _answer(self, request: InferenceRequest, version: str, reply: ClientReply | None) -> bytes:
        """What the model answered. Raises CallRefused where that is an error."""
        if reply is None:
            raise Refused(CLIENT_GONE, "the client has gone")
        if reply.status < 400:
            return reply.body
        if request.refusal is not None and reply.status == 404:
            raise self._not_found(request.model, version)
        message = message_of(reply.status, reply.body)
        retry_after_s = next((int(value) for name, value in reply.headers if name == b"retry-after"), 0)
        raise CallRefused(reply.status, message, retry_after_s=retry_after_s)

    def _not_found(self, name: str, version: str) -> CallRefused:
        """Code and words are TorchServe's."""
        code = grpc.StatusCode.INTERNAL
        if name not in self.loaded.by_name:
            return CallRefused(404, f"Model not found: {name[:LONGEST_NAME]}", class_of("ModelNotFoundException"), code)
        message = f"Model version: {version[:LONGEST_NAME]} does not exist for model: {name}"
        return CallRefused(404, message, class_of("ModelVersionNotFoundException"), code)

    async def _written(self, request: InferenceRequest, body: bytes, sequence: str) -> bytes:
        size, work = len(body), self.gateway.large_work
        async with work.turn(size):
            with request.borrowed(REPLY_COPIES * size):
                answer = INFERENCE.classes[ANSWERED](prediction=body, sequence_id=sequence)
                written: bytes = await work.run(size, answer.SerializeToString)
                return written
