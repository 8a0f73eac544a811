"""A client of TorchServe's gRPC services, for TorchServe itself and for a host of ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from slotwise.host.torchserve_grpc.torchserve_messages import INFERENCE, INFERENCE_SERVICE, MANAGEMENT, MANAGEMENT_SERVICE
from slotwise.profiles.ports import Ports
from tests.support.certificates import NAME

UP_S, ANSWER_S = 120.0, 120.0
OF_INFERENCE = ("Ping", "Predictions", "StreamPredictions", "StreamPredictions2")
ANSWERS = {"Ping": "TorchServeHealthResponse", **dict.fromkeys(OF_INFERENCE[1:], "PredictionResponse")}


@dataclass(frozen=True)
class Outcome:
    """How a call ended. code: of gRPC, by its name. details: "" where it went well. content: of its messages: text or bytes.

    Of a stream that ended with an error it is what came before.
    """

    code: str
    details: str = ""
    content: tuple[Any, ...] = ()

    @property
    def value(self) -> Any:
        """What the one message says; JSON is read."""
        (content,) = self.content
        text = content.decode() if isinstance(content, bytes) else content
        try:
            return json.loads(text)
        except ValueError:
            return text


@dataclass(frozen=True)
class TorchServeClient:
    """Two channels. folder: where key_file.json is."""

    inference: grpc.Channel
    management: grpc.Channel
    folder: Path

    def token(self, kind: str) -> str:
        """The token of that kind as it is now."""
        return str(json.loads((self.folder / "key_file.json").read_text("utf-8"))[kind]["key"])

    def ask(
        self, method: str, message: bytes | None = None, token: str | None = None, timeout: float = ANSWER_S, **fields: Any
    ) -> Outcome:
        """Call it with these fields, or with that message. token: None for the right one, "" for none."""
        table, service, channel = (MANAGEMENT, MANAGEMENT_SERVICE, self.management)
        kind = "management"
        if method in OF_INFERENCE:
            table, service, channel, kind = INFERENCE, INFERENCE_SERVICE, self.inference, "inference"
        metadata = [("protocol", "gRPC")]
        brought = self.token(kind) if token is None else token
        if brought:
            metadata.append(("authorization", f"Bearer {brought}"))
        if message is None:
            message = b"" if method == "Ping" else table.classes[_request(method)](**fields).SerializeToString()
        path = f"/{service}/{method}"
        answers: list[bytes] = []
        code, details = "OK", ""
        try:
            if method.startswith("Stream"):
                for answer in channel.unary_stream(path)(message, timeout=timeout, metadata=metadata):
                    answers.append(answer)  # what came before an error counts
            else:
                answers.append(channel.unary_unary(path)(message, timeout=timeout, metadata=metadata))
        except grpc.RpcError as error:
            code, details = error.code().name, error.details() or ""
        read = [table.classes[ANSWERS.get(method, "ManagementResponse")].FromString(answer) for answer in answers]
        return Outcome(code, details, tuple(getattr(one, one.DESCRIPTOR.fields[0].name) for one in read))

    def streamed(self, model: str, body: bytes) -> Any:
        """A stream for one input called data, as grpcio has it: an iterator of messages that can be cancelled."""
        path, metadata = f"/{INFERENCE_SERVICE}/StreamPredictions", [("authorization", f"Bearer {self.token('inference')}")]
        message = INFERENCE.classes["PredictionsRequest"](model_name=model, input={"data": body}).SerializeToString()
        return self.inference.unary_stream(path)(message, timeout=ANSWER_S, metadata=metadata)

    def both_ways(self, asked: Iterable[Mapping[str, Any]], **given: Any) -> Any:
        """A call of StreamPredictions2 for requests of these fields, as grpcio has it: an iterator of answers."""
        metadata = [("authorization", f"Bearer {self.token('inference')}")]
        call = self.inference.stream_stream(
            f"/{INFERENCE_SERVICE}/StreamPredictions2",
            request_serializer=lambda fields: INFERENCE.classes["PredictionsRequest"](**fields).SerializeToString(),
            response_deserializer=INFERENCE.classes["PredictionResponse"].FromString,
        )
        return call(iter(asked), **{"timeout": ANSWER_S, "metadata": metadata} | given)

    def predict(self, model: str, body: bytes, **more: Any) -> Outcome:
        """A prediction for one input called data."""
        return self.ask("Predictions", model_name=model, input={"data": body}, **more)


def _request(method: str) -> str:
    return "PredictionsRequest" if "Predictions" in method else f"{method}Request"


@contextmanager
def client_of(ports: Ports, folder: Path, trusted: Path | None = None) -> Iterator[TorchServeClient]:
    """A client, once both ports are there: TorchServe opens them after those of HTTP. trusted: their certificate, for TLS."""
    options: list[tuple[str, Any]] = [("grpc.max_receive_message_length", -1)]
    addresses = [f"127.0.0.1:{number}" for number in (ports.grpc_inference, ports.grpc_management)]
    if trusted:
        credentials = grpc.ssl_channel_credentials(trusted.read_bytes())
        options.append(("grpc.ssl_target_name_override", NAME))
        channels = [grpc.secure_channel(address, credentials, options) for address in addresses]
    else:
        channels = [grpc.insecure_channel(address, options) for address in addresses]
    try:
        for channel in channels:
            grpc.channel_ready_future(channel).result(UP_S)
        yield TorchServeClient(*channels, folder)
    finally:
        for channel in channels:
            channel.close()
