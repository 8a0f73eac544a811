"""A client of KServe's gRPC service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from slotwise.frontend.grpc.open_inference_messages import CLASSES, SERVICE
from tests.support.certificates import NAME

Call = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def client_of(address: str, trusted: bytes | None = None, own: tuple[Path, Path] | None = None) -> AsyncIterator[Call]:
    """A client; call(method, message, ...) gives the answer. own: its certificate and key."""
    certificate, key = (file.read_bytes() for file in own) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(trusted, key, certificate) if trusted else None
    named = [("grpc.ssl_target_name_override", NAME)]
    channel = grpc.aio.secure_channel(address, credentials, named) if credentials else grpc.aio.insecure_channel(address)

    async def call(method: str, message: Any = b"", compression: Any = None, timeout: float = 60, **metadata: str) -> Any:
        data = message if isinstance(message, bytes) else message.SerializeToString()
        given = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        asked = channel.unary_unary(f"/{SERVICE}/{method}")
        answer = await asked(data, timeout=timeout, metadata=given, compression=compression)
        return CLASSES[f"{method}Response"].FromString(answer)

    async with channel:
        yield call


def streaming(channel: grpc.aio.Channel, **given: Any) -> Any:
    """A call of ModelStreamInfer, whose messages come and go as protobuf's."""
    return channel.stream_stream(
        f"/{SERVICE}/ModelStreamInfer",
        request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
        response_deserializer=CLASSES["ModelStreamInferResponse"].FromString,
    )(**given)
