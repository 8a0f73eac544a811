"""/metrics/server: the model server's own metrics pass through the gateway, for it is on loopback."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .conftest import MakeFront
from .standin import StandIn

pytestmark = pytest.mark.anyio


class Measured(StandIn):
    """A server with one metric."""

    def _management(self, target: str) -> bytes:
        body = b"ts_queue_latency_microseconds 7.0\n"
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        return head + body if target == "/metrics" else super()._management(target)


async def test_the_servers_metrics_are_passed_on(make_front: MakeFront) -> None:
    front = await make_front(Measured())
    answer = await front.client.get("/metrics/server")
    assert (answer.status_code, answer.text) == (200, "ts_queue_latency_microseconds 7.0\n")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    await front.server.stop()
    assert (await front.client.get("/metrics/server")).status_code == 502


async def test_a_server_without_metrics_is_said(make_front: MakeFront) -> None:
    front = await make_front()
    assert front.record is not None
    front.record = replace(front.record, kind="mms")
    await front.gateway.refresh(0)
    answer = await front.client.get("/metrics/server")
    assert answer.status_code == 404
    assert "Prometheus" in answer.json()["error"]["message"]
