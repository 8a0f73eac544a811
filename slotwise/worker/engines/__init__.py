"""One file an engine, one small protocol: rows in, rows out.

`auto` takes the first of ORDER that is installed, for which the archive carries weights, and that runs:

    cpu     openvino, onnxruntime, torch
    cuda    torch

`precision = "auto"` is fp16 on CUDA. On a CPU it is bf16 where the processor has it in hardware *and* a comparison with fp32
on this machine finds the answers alike (engines/comparison.py), else fp32. int8 is never chosen by itself.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from slotwise.worker.engines import comparison, processor, samples
from slotwise.worker.engines.samples import ItemSource
from slotwise.worker.settings import Settings

logger = logging.getLogger(__name__)

ORDER = {"cpu": ("openvino", "onnxruntime", "torch"), "cuda": ("torch",)}
BF16 = ("openvino", "torch")


class Engine(Protocol):
    """What a handler calls. name: "torch", ...; precision: "fp32", "bf16", "fp16" or "int8"; device: "cpu" or "cuda".

    An engine that settles only after several runs of a shape says in `warm_up_runs` after how many.
    """

    name: str
    precision: str
    device: str

    def __call__(self, inputs: Any) -> Any:
        """[b, ...] to [b, ...]: exactly one output a row, in order."""


def load_engine(model_dir: Path, settings: Settings, handler: ItemSource | None = None) -> Engine:
    """The engine that the profile names, with this archive's weights. Raises ValueError, one sentence, where it cannot be.

    handler: decodes the archive's examples, so that engines are tried on real inputs; without it on noise of [input] shape.
    A handler that an author wrote may feed its engine otherwise: where it cannot be tried like that, it is loaded untried.
    """
    inputs = samples.handled(model_dir, handler) if handler is not None else samples.described(settings.model)
    try:
        return _choose(model_dir, settings, inputs)
    except Exception:
        if not inputs or not str(settings.model.get("handler", "")).endswith(".py"):
            raise
        logger.info("the engine cannot be tried before the warm-up", exc_info=True)
    return _choose(model_dir, settings, [])


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


def _choose(model_dir: Path, settings: Settings, inputs: Sequence[Any]) -> Engine:
    """The engine of that name; for `auto` the first of ORDER that fits and runs."""
    if settings.engine != "auto":
        return _load(settings.engine, model_dir, settings, inputs)
    weights = settings.model.get("weights", {})
    fitting = [name for name in ORDER[settings.device] if forms(name, settings.precision) & set(weights) and installed(name)]
    if not fitting:
        raise ValueError(f"no engine for the weights of this archive ({', '.join(weights) or 'none'}) is installed here")
    for name in fitting[:-1]:
        try:
            return _load(name, model_dir, settings, inputs)
        except Exception:
            logger.warning("%s cannot serve this archive here: trying the next engine", name, exc_info=True)
    return _load(fitting[-1], model_dir, settings, inputs)


def _load(name: str, model_dir: Path, settings: Settings, inputs: Sequence[Any]) -> Engine:
    known = sorted({engine for order in ORDER.values() for engine in order})
    if name not in known:
        raise ValueError(f"engine is {name!r}, but it must be auto or one of {', '.join(known)}")
    if not installed(name):
        raise ValueError(f"the engine {name} is not installed here")
    if not forms(name, settings.precision) & set(settings.model.get("weights", {})):
        raise ValueError(f"this archive carries no weights for {name} in {settings.precision}")
    if settings.device == "cuda" or settings.precision not in ("auto", "bf16", "int8"):
        engine = _start(name, model_dir, settings, inputs)
    elif settings.precision == "auto":
        engine = _best(name, model_dir, settings, inputs)
    else:
        engine = _named(name, model_dir, settings, inputs)
    logger.info("engine %s, %s, on %s with %d threads", engine.name, engine.precision, engine.device, settings.threads)
    return engine


def _start(name: str, model_dir: Path, settings: Settings, inputs: Sequence[Any]) -> Engine:
    """The engine loaded, and run once where there is an input: one that loads but cannot run is no engine."""
    engine: Any = import_module(f"slotwise.worker.engines.{name}").load(model_dir, settings)
    if inputs:
        if hasattr(engine, "choose_layout"):
            engine.choose_layout(inputs)
        outputs = engine(inputs[0])
        if len(outputs) != len(inputs[0]):
            raise ValueError(f"{name} gives {len(outputs)} outputs for {len(inputs[0])} rows")
    loaded: Engine = engine
    return loaded


def _best(name: str, model_dir: Path, settings: Settings, inputs: Sequence[Any]) -> Engine:
    """bf16 where the processor has it and the answers stay those of fp32, else fp32."""
    exact, reduced = settings.but(precision="fp32"), settings.but(precision="bf16")
    if name not in BF16 or not processor.has_bf16() or not inputs:
        return _start(name, model_dir, exact, inputs)
    reference: Engine | None = None
    figure = comparison.known(model_dir, name, "bf16", settings.model["weights"])
    if figure is None:
        reference = _start(name, model_dir, exact, inputs)
        try:
            engine = _start(name, model_dir, reduced, inputs)
            figure = _compare(name, model_dir, reduced, reference, engine, inputs)
        except Exception:  # what cannot be compared is not served
            logger.warning("%s cannot be compared in bf16: serving fp32", name, exc_info=True)
            return reference
        if figure <= comparison.MOST_FOR_AUTO:
            return engine
    if figure <= comparison.MOST_FOR_AUTO:
        return _start(name, model_dir, reduced, inputs)
    logger.warning("bf16 changes answers of %s by up to %.3f: serving fp32", name, figure)
    return reference or _start(name, model_dir, exact, inputs)


def _named(name: str, model_dir: Path, settings: Settings, inputs: Sequence[Any]) -> Engine:
    """bf16 or int8 because the profile says so; ValueError where it changes answers that fp32 is sure of."""
    weights = settings.model["weights"]
    engine = _start(name, model_dir, settings, inputs)
    if not inputs or not forms(name, "fp32") & set(weights):
        return engine  # nothing to compare with
    figure = comparison.known(model_dir, name, settings.precision, weights)
    if figure is None:
        reference = _start(name, model_dir, settings.but(precision="fp32"), inputs)
        figure = _compare(name, model_dir, settings, reference, engine, inputs)
    if figure > comparison.MOST_FOR_NAMED:
        raise ValueError(
            f"{name} in {settings.precision} is refused here: its answers differ by {figure:.2f} from fp32, use precision auto"
        )
    return engine


def _compare(name: str, model_dir: Path, settings: Settings, reference: Engine, engine: Engine, inputs: Sequence[Any]) -> float:
    figure = comparison.compare(settings.model, reference, engine, inputs)
    comparison.remember(model_dir, name, settings.precision, settings.model["weights"], figure)
    logger.info("%s in %s differs from fp32 by at most %.4f", name, settings.precision, figure)
    return figure
