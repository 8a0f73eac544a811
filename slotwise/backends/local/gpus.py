"""Which GPU each worker of this process gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


class Gpus:
    """Workers go round the GPUs, those of all models together: each gets one that has the fewest. names: as CUDA has them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.workers = list(names), dict.fromkeys(names, 0)

    @classmethod
    def visible(cls, count: int, environ: Mapping[str, str]) -> Gpus:
        """So many of those that whoever started this process lets it see."""
        names = environ.get("CUDA_VISIBLE_DEVICES")
        every = [name.strip() for name in names.split(",") if name.strip()] if names is not None else map(str, range(count))
        return cls(list(every)[:count])

    def only(self, places: Sequence[int]) -> Gpus:
        """Those at these places alone, counted with all others. Raises IndexError."""
        some = Gpus([self.names[place] for place in places])
        some.workers = self.workers
        return some

    def take(self) -> str:
        """The GPU of one more worker; "" where there is none."""
        gpu = min(self.names, key=self.workers.__getitem__, default="")
        if gpu:
            self.workers[gpu] += 1
        return gpu

    def give_back(self, gpu: str) -> None:
        """One of its workers has ended."""
        if gpu:
            self.workers[gpu] -= 1


def gpus_here() -> int:
    """How many GPUs of NVIDIA this machine has."""
    return sum(file.name.removeprefix("nvidia").isdigit() for file in Path("/dev").glob("nvidia[0-9]*"))
