"""Ten thousand clients, each with names of its own, add no series and no memory that grows with them."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import generate_latest

from slotwise.frontend.observing.observer import MOST_PATHS

from .conftest import MakeFront
from .over_http import connecting
from .test_access_log import observed

CLIENTS, AT_ONCE = 10_000, 10


def series(text: bytes) -> set[bytes]:
    """What there is, without its values."""
    return {line.rpartition(b" ")[0] for line in text.splitlines() if line[:1] != b"#"}


@pytest.mark.slow
@pytest.mark.anyio
async def test_ten_thousand_names_add_no_series(make_front: MakeFront, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")  # a line each takes longer than the request
    front = await make_front()
    observed(front)
    gateway = front.gateway
    async with connecting(front) as connect:

        async def asked(first: int, last: int) -> None:
            reader, writer = await connect()
            for i in range(first, last, AT_ONCE):
                for k in range(i, i + AT_ONCE):
                    path = f"/predictions/model{k}" if k % 10 else f"/v2/models/m{k}/infer"
                    names = f"x-request-id: id-{k}\r\nx-api-key: key{k}\r\nx-forwarded-for: 10.0.{k // 256}.{k % 256}\r\n"
                    writer.write(
                        f"POST {path} HTTP/1.1\r\nHost: x\r\n{names}x-client: {k}\r\nContent-Length: 0\r\n\r\n".encode()
                    )
                for _ in range(AT_ONCE):
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                    await reader.readexactly(length)

        await asked(0, 20)
        before = series(generate_latest(gateway.metrics.registry))
        await asyncio.gather(*(asked(i, i + CLIENTS // 4) for i in range(0, CLIENTS, CLIENTS // 4)))
        assert series(generate_latest(gateway.metrics.registry)) == before
    assert gateway.observer is not None
    assert gateway.observer.remembered is not None
    assert len(gateway.observer.remembered) == 100
    assert len(gateway.observer._paths) <= MOST_PATHS + 1
