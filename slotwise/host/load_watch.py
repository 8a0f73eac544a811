"""Look at every model whose workers follow its load, and scale those that are to have more or fewer.

A worker more is started beside those that serve, and gets requests once it is ready; one that goes finishes its batch first. So
nobody loses or waits for an answer because of a change. Models whose workers are not all ready are left alone.
"""

from __future__ import annotations

from collections.abc import Callable

from slotwise.backends.local.queue_members import StreamWorker
from slotwise.backends.local.served_model import ServedModel
from slotwise.host.look_again import look_again
from slotwise.host.model_versions import ModelVersions
from slotwise.host.workers_by_load import LOOK_S, LoadMeter, WorkersByLoad
from slotwise.profiles.memory import resident_bytes
from slotwise.server.capacity import Capacity


class LoadWatch:
    """Scales the models of `loaded` that have a chooser there. free_bytes(): what an operator leaves for more workers."""

    def __init__(self, loaded: ModelVersions, free_bytes: Callable[[], float]) -> None:
        self.loaded, self.free_bytes = loaded, free_bytes
        self._meters: dict[ServedModel, LoadMeter] = {}

    def add(self, served: ServedModel, chooser: WorkersByLoad) -> None:
        """Have a model's workers follow its load, from now on."""
        self.loaded.by_load[served] = chooser
        self._meters[served] = LoadMeter(served.queue.dispatcher)

    async def watch(self) -> None:
        """Look again and again."""
        await look_again(self.look, LOOK_S, "the load of models")

    def look(self) -> None:
        """Look once."""
        here = set(self.loaded.all())
        for one, meter in list(self._meters.items()):
            if one in here:
                self._look_at(one, self.loaded.by_load[one], meter)
            else:
                del self._meters[one], self.loaded.by_load[one]

    def _look_at(self, served: ServedModel, chooser: WorkersByLoad, meter: LoadMeter) -> None:
        workers, now = served.queue.workers, served.queue.loop.time()
        if any(isinstance(worker, StreamWorker) for worker in workers):
            return  # its streams share a worker: what it does is not counted in batches
        settled = workers and len(workers) == served.wanted and all(link.status == "READY" for link in served.links)
        if served.asleep or not settled:
            meter.forget()
            chooser.unsettled()
            if served.failure and workers and (wanted := chooser.failed(served.wanted, served.failure, now)) != served.wanted:
                self._scale(served, wanted)
                served.failure = ""  # those that there are serve
        elif (load := meter.read(workers, now)) is not None:
            self._scale(served, chooser.choose(load, len(workers), now, lambda: self._room(served)))

    def _scale(self, served: ServedModel, wanted: int) -> None:
        if wanted != served.wanted:
            served.scale(wanted)
            self.loaded.changed += 1

    def _room(self, served: ServedModel) -> int:
        """For how many of its workers there is memory, and place on this machine."""
        each = max(1, *(resident_bytes(link.pid) for link in served.links))
        now = len(served.links)
        return min(Capacity.here().most_workers(each, now), now + int(min(self.free_bytes(), 1 << 62) // each))
