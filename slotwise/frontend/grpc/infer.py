"""What is asked by a ModelInferRequest, read and answered, within the limits that every request has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slotwise.backends.interface import Refused
from slotwise.frontend.forward import Forward
from slotwise.frontend.frontend import Gateway
from slotwise.frontend.grpc import open_inference as open_inference_grpc
from slotwise.frontend.grpc.call import Call
from slotwise.frontend.grpc.open_inference_messages import MESSAGES
from slotwise.frontend.inference_request import InferenceRequest
from slotwise.frontend.observing.observer import OWN_ANSWER
from slotwise.frontend.protocols.each_record import answered
from slotwise.frontend.protocols.known_model import answering, known_version
from slotwise.frontend.protocols.open_inference_outputs import InferRequest
from slotwise.frontend.protocols.records import ModelInput, ProtocolFault, failed_alike
from slotwise.frontend.protocols.routes import REPLY_COPIES

AskedModel = tuple[str, str, ModelInput]  # its name, its version, and what it takes and gives
Parameters = Callable[[Mapping[str, Any]], None]


def answering_now(whole: InferenceRequest, of: AskedModel) -> AskedModel:
    """The same, with the version that has the request, where it is known."""
    name, version, model = of
    return name, whole.answered_by.version or version, model


class Infer:
    """Asks models for who calls ModelInfer."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.forward = gateway, Forward(gateway)

    async def reply(self, call: Call, data: bytes) -> bytes:
        """The ModelInferResponse to a ModelInferRequest. Raises Refused and ProtocolFault."""
        whole = InferenceRequest("", call.deadline, gateway=self.gateway, client_deadline=call.client_deadline)
        work = self.gateway.large_work
        try:
            whole.hold(data)
            del data
            batch, of = await self.read(whole, call)
            answers = await answered(self.forward, whole, batch.records, call.gone)
            failed = failed_alike(answers)
            if failed:
                again_s = int(failed.status in (429, 503))
                raise Refused(failed.status, failed.message, retry_after_s=again_s, logged=OWN_ANSWER)
            size = sum(len(answer.body) for answer in answers)
            async with work.turn(size):
                with whole.borrowed(REPLY_COPIES * size):
                    return await work.run(size, open_inference_grpc.reply, batch, *answering_now(whole, of), answers)
        except ProtocolFault:
            whole.bill.pay_anyhow(1)
            raise
        finally:
            whole.release()

    async def read(
        self, whole: InferenceRequest, call: Call, parameters: Parameters = lambda given: None
    ) -> tuple[InferRequest, AskedModel]:
        """What is asked of which model, as that is now. Raises Refused, ProtocolFault.

        Of the message, which `whole` holds, nothing is kept. parameters(given): gets those of the message.
        """
        try:
            return await self._read(whole, call, parameters)
        except (Refused, ProtocolFault) as refused:  # it has no record that is counted
            self.gateway.metrics.answer(whole.label, refused.status, None, 0)
            raise

    async def _read(self, whole: InferenceRequest, call: Call, parameters: Parameters) -> tuple[InferRequest, AskedModel]:
        work, size = self.gateway.large_work, whole.memory_bytes
        async with work.turn(size):
            with whole.borrowed(await work.run(size, MESSAGES.memory_bytes, "ModelInferRequest", whole.body)):
                message = await work.run(size, MESSAGES.parsed, "ModelInferRequest", whole.body)
                whole.ask(message.model_name)
                whole.read_head(call.scope(message.model_version))
                await known_version(self.gateway, whole)
                parameters(message.parameters)
                version, model = answering(self.gateway, whole)
                with whole.borrowed(await work.run(size, open_inference_grpc.reading_bytes, message, model)):
                    batch = await work.run(size, open_inference_grpc.request, message, model)
                    batch.ask(whole.headers)
                    del message
                    whole.body = b""
        whole.hold_bytes(sum(len(record.body) for record in batch.records))
        return batch, (whole.model, version, model)
