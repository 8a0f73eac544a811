"""A request that somebody observes, without a front."""

from __future__ import annotations

from slotwise.backends.exchange import BackendRequest
from slotwise.backends.request_way import RequestWay


def observed(way: RequestWay) -> BackendRequest:
    """The request whose way this is."""
    return BackendRequest("m", 0.0, identity=way.identity, way=way, seen=way)
