"""One file an engine, one small protocol: rows in, rows out.

`auto` takes the first of ORDER that is installed and for which the archive carries weights that passed the build's check:

    cpu     openvino, onnxruntime, torch
    cuda    torch

and `precision = "auto"` means bf16 where the processor has it in hardware (fp16 on CUDA), else fp32. int8 is never chosen
by itself: it changes answers a little, so a profile or a model has to ask for it.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from slotwise.worker.engines.processor import has_bf16
from slotwise.worker.settings import Settings

logger = logging.getLogger(__name__)

ORDER = {"cpu": ("openvino", "onnxruntime", "torch"), "cuda": ("torch",)}
CHECKS = "engines.json"  # the build's verdict on every engine it tried; an engine that failed is not served


class Engine(Protocol):
    """What a handler calls. name: "torch", ...; precision: "fp32", "bf16", "fp16" or "int8"; device: "cpu" or "cuda".

    An engine that settles only after several runs of a shape says in `warm_up_runs` after how many.
    """

    name: str
    precision: str
    device: str

    def __call__(self, inputs: Any) -> Any:
        """[b, ...] to [b, ...]: exactly one output a row, in order."""


def load_engine(model_dir: Path, settings: Settings) -> Engine:
    """The engine that the profile names, with this archive's weights. Raises ValueError, one sentence, where it cannot be."""
    weights = settings.model.get("weights", {})
    if settings.engine != "auto":
        return _load(settings.engine, model_dir, settings)
    for name in ORDER[settings.device]:
        if (
            forms(name, settings.precision) & set(weights)
            and installed(name)
            and not refused(model_dir, name, settings.precision)
        ):
            return _load(name, model_dir, settings)
    raise ValueError(f"no engine for the weights of this archive ({', '.join(weights) or 'none'}) is installed here")


def forms(name: str, precision: str) -> set[str]:
    """The keys of [weights] in model.toml that an engine can load."""
    if precision == "int8":
        return {"openvino_int8"} if name == "openvino" else set()
    if name == "onnxruntime" and precision not in ("auto", "fp32"):
        return set()
    return {"openvino": {"onnx"}, "onnxruntime": {"onnx"}, "torch": {"torchscript", "export", "state_dict"}}.get(name, set())


def installed(name: str) -> bool:
    """Whether the engine's package can be imported."""
    return importlib.util.find_spec(name) is not None


def refused(model_dir: Path, name: str, precision: str) -> str:
    """Why the build refused this engine, or an empty string."""
    path = model_dir / CHECKS
    checks: Mapping[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    if precision == "auto":
        precision = "bf16" if name != "onnxruntime" and has_bf16() else "fp32"
    verdict = checks.get(f"{name}-{precision}", {})
    return "" if verdict.get("passed", True) else str(verdict.get("why", "it failed the build's check"))


def _load(name: str, model_dir: Path, settings: Settings) -> Engine:
    known = sorted({engine for order in ORDER.values() for engine in order})
    if name not in known:
        raise ValueError(f"engine is {name!r}, but it must be auto or one of {', '.join(known)}")
    if not installed(name):
        raise ValueError(f"the engine {name} is not installed here")
    if not forms(name, settings.precision) & set(settings.model.get("weights", {})):
        raise ValueError(f"this archive carries no weights for {name} in {settings.precision}")
    if why := refused(model_dir, name, settings.precision):
        raise ValueError(f"the build refused {name} in {settings.precision}: {why}")
    module = import_module(f"slotwise.worker.engines.{name}")
    engine: Engine = module.load(model_dir, settings)
    logger.info("engine %s, %s, on %s with %d threads", engine.name, engine.precision, engine.device, settings.threads)
    return engine
