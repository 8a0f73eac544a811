"""Read the settings that a worker runs with: the worker's part of a profile.

An archive carries `slotwise.json`: the model's description, and the worker-side keys of every profile. The profile is chosen
where the worker runs. It is the one that `SLOTWISE_PROFILE` names, else cuda where the server assigned a GPU, else cpu.

A server that slotwise started sets more variables, all JSON objects. `SLOTWISE_WORKER` has the profile's keys as its file
is now, which may have changed since the archive was built. `SLOTWISE_OVERRIDES` has what `--set` gave on the command line.
`SLOTWISE_SHARES` says how many cores each model has, where there are several.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from slotwise.worker.environment.cores import available_cores

logger = logging.getLogger(__name__)

PROOF_S = 20.0  # where an archive of an earlier build has no such key


@dataclass(frozen=True)
class Settings:
    """How a worker is to run.

    profile: its name. device: "cpu" or "cuda", where the engine really runs: a profile's cuda is cpu here where there is no
    GPU. engine: "auto", or an engine's name. precision: "auto", "fp32", "bf16", "fp16" or "int8".

    workers: how many workers of this model the profile starts. threads: engine threads of this worker; in a profile 0 means
    its share of the cores among these, one at least. decode_threads: the same for
    decoding. memory_fraction: the share of a GPU's memory that this worker may take, 0 to 1.

    padding: "none", "static" or "bucketed". batch_size: the most requests in a batch. response_timeout_s: seconds after which
    the server ends a worker that has not answered. decode_budget_ms: how many milliseconds a batch may decode, as estimated
    from its bodies. max_response_bytes: the largest body that the server sends. model: the model's description (model.toml).

    audit: the share of requests that are answered again, alone, after their batch was answered, and compared. proof_s: how many
    seconds a start may take to prove that rows are kept apart, where no verdict is there; 0: it asks for none.

    deterministic: the same request gives the same bytes, whatever its mates.
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
    audit: float = 0.0
    model: Mapping[str, Any] = field(default_factory=dict)
    proof_s: float = 0.0
    deterministic: bool = False

    @classmethod
    def load(
        cls, model_dir: Path, environ: Mapping[str, str] = os.environ, gpu_id: int | None = None, batch_size: int = 1
    ) -> Settings:
        """Read the archive's `slotwise.json`; a handler without one runs with the defaults.

        A key's value comes from the first of these that has it: the command line's --set, the model's own values for this
        profile, the server's copy of the profile, the archive's copy. batch_size is the server's, as set at registration.

        Raises ValueError where nothing describes the profile.
        """
        path = model_dir / "slotwise.json"
        carried = json.loads(path.read_text("utf-8")) if path.is_file() else {"model": {}, "profiles": {}}
        profiles: dict[str, dict[str, Any]] = carried["profiles"]
        name = environ.get("SLOTWISE_PROFILE") or ("cuda" if gpu_id is not None else "cpu")
        current = json.loads(environ.get("SLOTWISE_WORKER") or "{}")
        overrides = json.loads(environ.get("SLOTWISE_OVERRIDES") or "{}")
        if profiles and name not in profiles and not current:
            raise ValueError(f"SLOTWISE_PROFILE is {name!r}, but the archive carries {', '.join(sorted(profiles))}")
        of_model = dict(carried["model"].get("profiles", {}).get(name, {}))
        if "initial_workers" in of_model:
            of_model["workers"] = of_model["initial_workers"]
        merged = {**profiles.get(name, {}), **current, **of_model, **overrides}
        known = {entry.name for entry in fields(cls)} - {"profile", "batch_size", "model"}
        values = {key: value for key, value in merged.items() if key in known}
        values.setdefault("proof_s", PROOF_S)
        settings = cls(profile=name, batch_size=max(1, batch_size), model=carried["model"], **values)
        shares = json.loads(environ.get("SLOTWISE_SHARES") or "{}")
        cores = min(available_cores(), shares.get(carried["model"].get("name"), 1 << 20))
        return settings.within_budget(cores).on_present_device()

    def on_present_device(self) -> Settings:
        """The same settings, on the CPU where the profile asks for CUDA and there is none. Nothing else decides that."""
        if self.device != "cuda" or has_cuda():
            return self
        logger.warning("the profile %s asks for CUDA, but torch sees no such device: serving on the CPU", self.profile)
        return self.but(device="cpu", precision="auto" if self.precision == "fp16" else self.precision)

    def within_budget(self, cores: int) -> Settings:
        """The same settings with this worker's share of the cores, at least one.

        Engine threads never exceed the share: threads of two workers on one core only slow each other down. Decode threads
        are as many as the share unless the profile names a number, and never exceed the cores.
        """
        share = max(1, cores // max(1, self.workers))
        if self.threads > share:
            logger.warning("threads=%d cut to %d: %d workers share %d cores", self.threads, share, self.workers, cores)
        threads = min(self.threads or share, share)
        decode_threads = min(self.decode_threads or share, cores)
        return self.but(threads=threads, decode_threads=decode_threads)

    def but(self, **changes: Any) -> Settings:
        """The same settings with some values changed."""
        return type(self)(**{**{entry.name: getattr(self, entry.name) for entry in fields(self)}, **changes})

    def limit_threads(self) -> None:
        """Tell every numeric library that is loaded later how many threads it may start."""
        if not self.threads:
            return
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
            os.environ[name] = str(self.threads)


def json_object(path: Path) -> dict[str, Any]:
    """What a file of JSON holds; nothing where there is no file, or no object in it."""
    data = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return data if isinstance(data, dict) else {}


def has_cuda() -> bool:
    """Whether PyTorch sees a CUDA device. Imports torch, which takes seconds, only where there is a driver."""
    if importlib.util.find_spec("torch") is None or not has_driver():
        return False
    import torch  # noqa: PLC0415  heavy

    return bool(torch.cuda.is_available())


def has_driver() -> bool:
    """Whether there is what PyTorch needs to see a GPU: NVIDIA's driver, or AMD's."""
    if not sys.platform.startswith("linux") or Path("/dev/kfd").exists():
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def pin_gpu(gpu_id: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Show this worker only the GPU that the server assigned to it.

    To be called before a library looks for GPUs: "cuda" then means that one everywhere.
    """
    visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    environ["CUDA_VISIBLE_DEVICES"] = visible[gpu_id] if gpu_id < len(visible) else str(gpu_id)
