"""One version of a model whose workers are replicas that Ray places, scales and replaces: it has those that are connected."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.served_model import ServedModel
from slotwise.backends.local.worker_link import Measured, WorkerCommand, WorkerLink
from slotwise.server.ray.front_link import LEAVING
from slotwise.worker.hosts import frames
from slotwise.worker.hosts.frames import Frame

log = logging.getLogger("slotwise.host")

START_S = 30.0  # from its proof to its first word
OF_STREAMS = ("streams", "cancels")  # what a worker can do that a replica does not: it answers batches, whole


@dataclass(eq=False)
class ReplicaLink(WorkerLink):
    """The front's end of a replica's connection (slotwise.server.ray.front_link). Its process is Ray's, on whatever node."""

    @property
    def pid(self) -> int:
        """0: it may be another machine's."""
        return 0

    @property
    def reason(self) -> str:
        """Why it did not start."""
        return self.why

    def end(self, why: str) -> None:
        """Hang up: a replica that had something in hand then ends, and Ray starts another."""
        if not self.why:
            self.why = why
            log.error("replica %s is given up: %s", self.name, why)
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It has proved that it is one of ours: ask it to start."""
        self.deadline = self.loop.call_later(START_S, self.end, f"it did not start within {START_S:g} s")
        super().connection_made(transport)

    def tell(self, asked: float) -> None:
        """Say how many requests it has, for Ray's autoscaler."""
        if self.status == "READY" and not self.transport.is_closing():
            frame = frames.of_json(frames.START, {"asked": asked})
            self.transport.writelines([frame.head, frame.text])

    def _heard(self, frame: Frame) -> None:
        if frame.kind == frames.BEAT and frame.flags & LEAVING:
            self.retire()
            return
        super()._heard(frame)

    def _start(self, said: Mapping[str, Any]) -> None:
        super()._start({key: value for key, value in said.items() if key not in OF_STREAMS})

    def _closed(self) -> None:
        """The replica has ended, or its node has, or we have hung up."""
        if not self.why and not self.worker.retiring:
            self.why = "its connection ended"
            log.error("replica %s has gone", self.name)
        self.ended(self)


class PlacedModel(ServedModel):
    """See ServedModel. Nothing is started here: `welcome` takes a replica that has come.

    runs: the archive of its replicas, and how their batches are formed (slotwise.server.ray.server.what_runs).
    """

    def __init__(
        self, settings: ModelSettings, measured: Measured = lambda name, value, unit, code: None, *, runs: str
    ) -> None:
        super().__init__(settings, measured)
        self.runs = runs

    def welcome(self, replica: str) -> ReplicaLink:
        """The link of a replica that has proved that it is one; it joins once it has said what it runs on."""
        settings = self.settings
        link = ReplicaLink(
            name=replica,
            command=WorkerCommand(
                module="",
                model_dir=settings.model_dir,
                environ={},
                prints=settings.prints,
                batch_size=settings.batch_size,
            ),
            queue=self.queue,
            started=self._started,
            ended=self._ended,
            measured=self.measured,
        )
        self.links.append(link)
        return link

    def tell_asked(self) -> None:
        """Tell the replicas how many requests each has, those that wait shared among them."""
        ready = [link for link in self.links if isinstance(link, ReplicaLink) and link.status == "READY"]
        for link in ready:
            link.tell(self.ledger.open / len(ready))

    def _adjust(self) -> None:
        """Ray does. Where there are to be none, all are let go once they have answered."""
        if not self.wanted:
            for link in self.links:
                if link.status != "UNLOADING":
                    link.retire()
