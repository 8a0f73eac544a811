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
from slotwise.host.workers_by_load import LOOK_S, Load, LoadMeter, WorkersByLoad
from slotwise.profiles.memory import resident_bytes
from slotwise.server.capacity import Capacity


class LoadWatch:
    """Scales the models of `loaded` that have a chooser there. free_bytes(): what an operator leaves for more workers.

    cores: of the host. Of them a model takes those that its workers are busy on.
    """

    def __init__(self, loaded: ModelVersions, free_bytes: Callable[[], float], cores: int) -> None:
        self.loaded, self.free_bytes, self.cores = loaded, free_bytes, cores
        self._meters: dict[ServedModel, LoadMeter] = {}

    def add(self, served: ServedModel, chooser: WorkersByLoad) -> None:
        """Have a model's workers follow its load, from now on."""
        self.loaded.by_load[served] = chooser

    async def watch(self) -> None:
        """Look again and again."""
        await look_again(self.look, LOOK_S, "the load of models")

    def look(self) -> None:
        """Look once."""
        self._meters = {one: self._meters.get(one) or LoadMeter(one.queue.dispatcher) for one in self.loaded.all()}
        loads = {one: _load(one, meter) for one, meter in self._meters.items()}
        free = self.cores - sum(len(one.queue.workers) * (load.busy if load else 1.0) for one, load in loads.items())
        choosers = self.loaded.by_load = {one: chooser for one, chooser in self.loaded.by_load.items() if one in loads}
        asked_for = free < 1 and any(chooser.wants_its_share(len(one.queue.workers)) for one, chooser in choosers.items())
        for one, chooser in choosers.items():
            self._look_at(one, chooser, loads[one], free, asked_for)

    def _look_at(self, served: ServedModel, chooser: WorkersByLoad, load: Load | None, free: float, asked_for: bool) -> None:
        """Scale one model. free: cores that nobody is busy on. asked_for: a model wants its share of them."""
        workers, now = served.queue.workers, served.queue.loop.time()
        if _streams(served):
            return  # its streams share a worker: what it does is not counted in batches
        if not _settled(served):
            chooser.unsettled()
            if served.failure and workers and (wanted := chooser.failed(served.wanted, served.failure, now)) != served.wanted:
                self._scale(served, wanted)
                served.failure = ""  # those that there are serve
        elif asked_for and chooser.share and len(workers) > chooser.share:
            self._scale(served, chooser.to_its_share(len(workers), now))
        elif load is not None:
            self._scale(served, chooser.choose(load, len(workers), now, lambda: self._room(served), free))

    def _scale(self, served: ServedModel, wanted: int) -> None:
        if wanted != served.wanted:
            served.scale(wanted)
            self.loaded.changed += 1

    def _room(self, served: ServedModel) -> int:
        """For how many of its workers there is memory, and place on this machine."""
        each = max(1, *(resident_bytes(link.pid) for link in served.links))
        now = len(served.links)
        return min(Capacity.here().most_workers(each, now), now + int(min(self.free_bytes(), 1 << 62) // each))


def _streams(served: ServedModel) -> bool:
    return any(isinstance(worker, StreamWorker) for worker in served.queue.workers)


def _settled(served: ServedModel) -> bool:
    """Whether it has the workers that it is to have, all of them ready."""
    workers = served.queue.workers
    ready = workers and len(workers) == served.wanted and all(link.status == "READY" for link in served.links)
    return bool(ready) and not served.asleep


def _load(served: ServedModel, meter: LoadMeter) -> Load | None:
    """A model's load since the last look; None where that is not known."""
    if _streams(served) or not _settled(served):
        meter.forget()
        return None
    return meter.read(served.queue.workers, served.queue.loop.time())
