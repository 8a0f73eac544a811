"""Calls of ModelStreamInfer: a port, requests of texts, and what each was answered."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from slotwise.frontend.frontend import Gateway
from slotwise.frontend.grpc.open_inference_messages import CLASSES
from slotwise.frontend.grpc.server import GrpcServer
from slotwise.frontend.http.client_connections import ConnectionLimits
from tests.support.grpc_client import streaming as stream_of


@asynccontextmanager
async def server_of(gateway: Gateway, **limits: Any) -> AsyncIterator[tuple[GrpcServer, grpc.aio.Channel]]:
    """A gRPC port, and a channel to it."""
    server = GrpcServer(gateway, "127.0.0.1", 0, limits=ConnectionLimits(**limits))
    await server.bind()
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield server, channel
    finally:
        await server.stop(None)


def infer(text: str | bytes | list[str], identity: str = "", model: str = "digits", **parameters: Any) -> Any:
    """A ModelInferRequest of texts."""
    texts = text if isinstance(text, list) else [text]
    elements = [one.encode() if isinstance(one, str) else one for one in texts]
    raw = b"".join(struct.pack("<I", len(one)) + one for one in elements)
    message = CLASSES["ModelInferRequest"](model_name=model, id=identity, raw_input_contents=[raw])
    message.inputs.add(name="x", datatype="BYTES", shape=[len(texts)])
    message.outputs.add(name="answer")
    for name, value in parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "string_param"
        setattr(message.parameters[name], kind, value)
    return message


Said = tuple[str, list[str], bool]  # id, what its answer or its error is, whether it is its last


def said(response: Any) -> Said:
    answer = response.infer_response
    texts = []
    for raw in answer.raw_output_contents[:1]:
        while raw:
            (size,) = struct.unpack_from("<I", raw)
            texts.append(raw[4 : 4 + size].decode())
            raw = raw[4 + size :]
    if response.error_message:
        code = json.loads(answer.parameters["errors"].string_param)["0"]["code"]
        texts = [f"{code} {response.error_message}"]
    return answer.id, texts, answer.parameters["triton_final_response"].bool_param


async def asked(channel: grpc.aio.Channel, *requests: Any, **metadata: str) -> dict[str, list[Said]]:
    """What each id was answered."""
    given = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    got: dict[str, list[Said]] = {}
    async for response in stream_of(channel, request_iterator=iter(requests), metadata=given, timeout=60):
        got.setdefault(response.infer_response.id, []).append(said(response))
    return got
