"""Where replicas come in: a port on this node's address. Who cannot prove that it is a replica gets no request."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from slotwise.backends.exchange import Refused
from slotwise.host.model_versions import ModelVersions
from slotwise.host.on_ray.placed_model import PlacedModel
from slotwise.server.ray.front_link import (
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
        self.strangers = 0

    @asynccontextmanager
    async def open(self, address: str) -> AsyncIterator[FrontAddress]:
        """Within, replicas may come to this address; which port it is, the system chooses."""
        server = await asyncio.start_server(self._came, address, 0, limit=LONGEST_LINE)
        try:
            yield FrontAddress(address, server.sockets[0].getsockname()[1], self.secret)
        finally:
            server.close()

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let one in, or hang up."""
        self.strangers += 1
        try:
            if self.strangers <= MOST_STRANGERS:
                async with asyncio.timeout(PROVE_S):
                    await self._prove(reader, writer)
                return
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.warning("somebody who is no replica came to its port: %s", error or type(error).__name__)
        except Refused as refused:  # it may be on its way
            log.info("a replica came, but %s", refused.message)
        finally:
            self.strangers -= 1
        writer.transport.abort()

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Raises ValueError where it cannot prove that it is a replica, Refused where its model is not loaded."""
        ours = nonce()
        writer.write(f"{ours}\n".encode())
        said = json.loads(await reader.readuntil())
        if not isinstance(said, dict):
            raise ValueError("it says nothing that can be understood")
        about = [ours, *(str(said.get(key)) for key in ("nonce", "model", "version", "replica"))]
        if not proves(said.get("proof"), self.secret, REPLICA, *about):
            raise ValueError("it does not know the secret")
        _, _, model, version, replica = about
        served = self.loaded.find(model, version)
        assert isinstance(served, PlacedModel)
        writer.write(f"{proof(self.secret, FRONT, *about)}\n".encode())
        link = served.welcome(replica)
        writer.transport.set_protocol(link)
        link.connection_made(writer.transport)
