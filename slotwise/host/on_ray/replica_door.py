"""Where replicas come in: a port on this node's address. Who cannot prove that it is a replica gets no request."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from slotwise.backends.exchange import Refused
from slotwise.host.model_versions import ModelVersions
from slotwise.host.on_ray.placed_model import PlacedModel
from slotwise.server.ray.front_link import (
    ABOUT,
    FRONT,
    LONGEST_LINE,
    PROVE_S,
    REPLICA,
    FrontAddress,
    nonce,
    proof,
    proves,
)

log = logging.getLogger("slotwise.host")

MOST_STRANGERS = 256  # connections that have proved nothing yet


class ReplicaDoor:
    """Takes replicas of the models that are loaded."""

    def __init__(self, loaded: ModelVersions, secret: str) -> None:
        self.loaded, self.secret = loaded, secret
        self.strangers: dict[_Stranger, None] = {}  # who came first stands first

    @asynccontextmanager
    async def open(self, address: str) -> AsyncIterator[FrontAddress]:
        """Within, replicas may come to this address; which port it is, the system chooses."""
        server = await asyncio.get_running_loop().create_server(lambda: _Stranger(self), address, 0)
        try:
            yield FrontAddress(address, server.sockets[0].getsockname()[1], self.secret)
        finally:
            server.close()
            for stranger in list(self.strangers):
                stranger.transport.abort()


class _Stranger(asyncio.Protocol):
    """A connection until it has proved that it is a replica's."""

    def __init__(self, door: ReplicaDoor) -> None:
        self.door, self.nonce, self.line = door, nonce(), b""
        self.transport: asyncio.Transport
        self.late: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has come."""
        self.transport = cast("asyncio.Transport", transport)
        self.late = asyncio.get_running_loop().call_later(PROVE_S, self.transport.abort)
        self.door.strangers[self] = None
        if len(self.door.strangers) > MOST_STRANGERS:  # a replica proves itself at once: who has not by now is none
            next(iter(self.door.strangers)).transport.abort()
        self.transport.write(f"{self.nonce}\n".encode())

    def connection_lost(self, error: Exception | None) -> None:
        """It has gone, or was sent away."""
        self._known()

    def data_received(self, data: bytes) -> None:
        """What it says of itself, or a piece of that."""
        self.line += data
        if b"\n" not in data and len(self.line) <= LONGEST_LINE:
            return
        try:
            self._prove()
        except (ValueError, RecursionError) as error:
            log.warning("somebody who is no replica came to its port: %s", error)
            self.transport.abort()
        except Refused as refused:  # its model may be on its way, or has just gone
            log.info("a replica came, but %s", refused.message)
            self.transport.abort()

    def _prove(self) -> None:
        """Raises ValueError where it cannot prove that it is a replica, Refused where what it runs is not what is loaded."""
        said = json.loads(self.line)
        if not isinstance(said, dict):
            raise ValueError("it says nothing that can be understood")
        about = [self.nonce, *(str(said.get(key)) for key in ("nonce", *ABOUT))]
        if not proves(said.get("proof"), self.door.secret, REPLICA, *about):
            raise ValueError("it does not know the secret")
        _, _, model, version, runs, replica = about
        served = self.door.loaded.find(model, version)
        assert isinstance(served, PlacedModel)
        if runs != served.runs:  # of an earlier registration, which Ray has not ended yet
            raise Refused(404, "another archive is registered")
        self._known()
        self.transport.write(f"{proof(self.door.secret, FRONT, *about)}\n".encode())
        link = served.welcome(replica)
        self.transport.set_protocol(link)
        link.connection_made(self.transport)

    def _known(self) -> None:
        self.late.cancel()
        self.door.strangers.pop(self, None)
