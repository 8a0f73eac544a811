"""The profile as the worker sees it.

An archive carries `slotwise.json`: the model's description and the worker-side keys of every profile. Which profile holds
is decided where the worker runs: `SLOTWISE_PROFILE`, else cuda where the server assigned a GPU, else cpu. A server that
slotwise started says more: `SLOTWISE_WORKER`, the profile's keys as they are now (its file may have changed since the
archive was built), and `SLOTWISE_OVERRIDES`, what `--set` said. Both are JSON objects.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from slotwise.worker.cores import available_cores

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """Everything a handler may ask about how it is to run.

    device: where the engine really runs; a profile's cuda is cpu here where there is none. threads: engine threads of this
    worker (0 in a profile: its share of the cores); all workers together never have more than there are cores.
    decode_threads: likewise, for decoding. padding: "none", "static" or "bucketed". memory_fraction: the share of a GPU's
    memory this worker may take. decode_budget_ms: how long a batch may decode, by what its bodies are estimated to cost.
    max_response_bytes: what the server lets through. model: the model's description (model.toml).
    """

    profile: str = "cpu"
    device: str = "cpu"
    engine: str = "auto"
    precision: str = "auto"
    workers: int = 1
    threads: int = 0
    decode_threads: int = 0
    padding: str = "none"
    batch_size: int = 1
    response_timeout_s: float = 120.0
    decode_budget_ms: float = 1000.0
    max_response_bytes: int = 6_553_500  # both servers' own default
    memory_fraction: float = 1.0
    model: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(
        cls, model_dir: Path, environ: Mapping[str, str] = os.environ, gpu_id: int | None = None, batch_size: int = 1
    ) -> Settings:
        """Read the archive's `slotwise.json`; a handler without one runs with the defaults.

        batch_size is the server's (set at registration), not the profile's. Strongest first: what --set said, the model's
        wishes for this profile, the server's profile, the archive's. Raises ValueError for a profile that nobody knows.
        """
        path = model_dir / "slotwise.json"
        carried = json.loads(path.read_text("utf-8")) if path.is_file() else {"model": {}, "profiles": {}}
        profiles: dict[str, dict[str, Any]] = carried["profiles"]
        name = environ.get("SLOTWISE_PROFILE") or ("cuda" if gpu_id is not None else "cpu")
        told, said = (json.loads(environ.get(key) or "{}") for key in ("SLOTWISE_WORKER", "SLOTWISE_OVERRIDES"))
        if profiles and name not in profiles and not told:
            raise ValueError(f"SLOTWISE_PROFILE is {name!r}, but the archive carries {', '.join(sorted(profiles))}")
        wishes = dict(carried["model"].get("profiles", {}).get(name, {}))
        if "initial_workers" in wishes:
            wishes["workers"] = wishes["initial_workers"]
        wanted = {**profiles.get(name, {}), **told, **wishes, **said}
        known = {entry.name for entry in fields(cls)} - {"profile", "batch_size", "model"}
        values = {key: value for key, value in wanted.items() if key in known}
        settings = cls(profile=name, batch_size=max(1, batch_size), model=carried["model"], **values)
        return settings.within_budget(available_cores()).on_present_device()

    def on_present_device(self) -> Settings:
        """The same settings on the CPU where the profile wants CUDA and there is none: the one place where that is decided."""
        if self.device != "cuda" or has_cuda():
            return self
        logger.warning("the profile %s wants CUDA, but torch sees no such device: serving on the CPU", self.profile)
        return self.but(device="cpu", precision="auto" if self.precision == "fp16" else self.precision)

    def within_budget(self, cores: int) -> Settings:
        """The same settings with this worker's share of the cores: never more threads, and never less than one."""
        share = max(1, cores // max(1, self.workers))
        if self.threads > share:
            logger.warning("threads=%d cut to %d: %d workers share %d cores", self.threads, share, self.workers, cores)
        return self.but(threads=min(self.threads or share, share), decode_threads=min(self.decode_threads or share, cores))

    def but(self, **changes: Any) -> Settings:
        """The same settings with some values changed."""
        return type(self)(**{**{entry.name: getattr(self, entry.name) for entry in fields(self)}, **changes})

    def limit_threads(self) -> None:
        """Tell every numeric library that is loaded later how many threads it may start."""
        if not self.threads:
            return
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
            os.environ[name] = str(self.threads)


def has_cuda() -> bool:
    """Whether PyTorch sees a CUDA device. Imports torch, so it is asked only where a profile wants one."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch  # noqa: PLC0415  heavy

    return bool(torch.cuda.is_available())


def pin_gpu(gpu_id: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Show this worker only the GPU that the server dealt it, before a library looks: "cuda" is that one everywhere."""
    visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    environ["CUDA_VISIBLE_DEVICES"] = visible[gpu_id] if gpu_id < len(visible) else str(gpu_id)
