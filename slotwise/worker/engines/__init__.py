"""The engines, one file each: a batch of inputs in, a batch of outputs out.

`load_engine` is for pictures and tensors; engines/translation.py and engines/git.py are for text. All choose by
engines/choice.py. `auto` takes the first of ORDER that is installed, for which the archive carries weights, and that runs:

    cpu     openvino, onnxruntime, torch
    cuda    torch

`precision = "auto"` is fp16 on CUDA. On a CPU it is bf16 where the processor has it in hardware *and* a comparison with fp32
on this machine finds the answers alike (engines/comparison.py), else fp32. int8 is never chosen by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from slotwise.worker.engines import comparison, processor, samples
from slotwise.worker.engines.choice import Engine, apart_from_fp32, choose, installed
from slotwise.worker.engines.samples import ItemSource
from slotwise.worker.environment import no_reports  # noqa: F401  before any library
from slotwise.worker.environment.settings import Settings

logger = logging.getLogger(__name__)

ORDER = {"cpu": ("openvino", "onnxruntime", "torch"), "cuda": ("torch",)}
BF16 = ("openvino", "torch")


def load_engine(model_dir: Path, settings: Settings, handler: ItemSource | None = None) -> Engine:
    """The engine that the profile names, with this archive's weights. Raises ValueError, one sentence, where none can serve.

    handler: decodes the archive's examples, so that engines are tried on real inputs. Without it they are tried on noise of
    the shape in [input]. An author's own handler may give its engine other inputs than that: where no engine runs on them,
    the engine is loaded without a trial.
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
    """The keys of [weights] in model.toml that this engine can load in this precision."""
    if precision == "int8":
        return {"openvino_int8"} if name == "openvino" else set()
    if name == "onnxruntime" and precision not in ("auto", "fp32"):
        return set()
    return {"openvino": {"onnx"}, "onnxruntime": {"onnx"}, "torch": {"torchscript", "export", "state_dict"}}.get(name, set())


def _choose(model_dir: Path, settings: Settings, inputs: Sequence[Any]) -> Engine:
    weights = settings.model.get("weights", {})

    def objection(name: str) -> str | None:
        if not installed(name):
            return f"{name} is not installed"
        if not forms(name, settings.precision) & set(weights):
            return f"the archive carries no weights for {name} in {settings.precision}"
        return None

    def start(name: str) -> Engine:
        if settings.device == "cuda" or settings.precision not in ("auto", "bf16", "int8"):
            return _start(name, model_dir, settings, inputs)
        if settings.precision == "auto":
            return _best(name, model_dir, settings, inputs)
        return _named(name, model_dir, settings, inputs)

    engine: Engine = choose(settings, ORDER, objection, start)
    return engine


def _start(name: str, model_dir: Path, settings: Settings, inputs: Sequence[Any]) -> Engine:
    """Load the engine, and run it once where there is an input: one that loads may still be unable to run."""
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
    """The engine in bf16 where the processor has it and the answers stay near those of fp32, else in fp32."""
    if name not in BF16 or not processor.has_bf16() or not inputs:
        return _start(name, model_dir, settings.but(precision="fp32"), inputs)
    started: dict[str, Engine] = {}

    def measure() -> float:
        for precision in ("fp32", "bf16"):
            started[precision] = _start(name, model_dir, settings.but(precision=precision), inputs)
        return comparison.compare(settings.model, started["fp32"], started["bf16"], inputs)

    try:
        figure = apart_from_fp32(model_dir, name, "bf16", settings.model["weights"], measure)
    except Exception:  # without a comparison nobody knows what bf16 answers
        if "fp32" not in started:
            raise
        logger.warning("%s cannot be compared in bf16: serving fp32", name, exc_info=True)
        return started["fp32"]
    precision = "bf16" if figure <= comparison.MOST_FOR_AUTO else "fp32"
    if precision == "fp32":
        logger.warning("bf16 changes answers of %s by up to %.3f: serving fp32", name, figure)
    return started.get(precision) or _start(name, model_dir, settings.but(precision=precision), inputs)


def _named(name: str, model_dir: Path, settings: Settings, inputs: Sequence[Any]) -> Engine:
    """The engine in bf16 or int8, as the profile says. Raises ValueError where that changes answers that fp32 is sure of."""
    weights = settings.model["weights"]
    engine = _start(name, model_dir, settings, inputs)
    if not inputs or not forms(name, "fp32") & set(weights):
        return engine  # nothing to compare with

    def measure() -> float:
        exact = _start(name, model_dir, settings.but(precision="fp32"), inputs)
        return comparison.compare(settings.model, exact, engine, inputs)

    figure = apart_from_fp32(model_dir, name, settings.precision, weights, measure)
    if figure > comparison.MOST_FOR_NAMED:
        raise ValueError(
            f"{name} in {settings.precision} is refused here: its answers differ by {figure:.2f} from fp32, use precision auto"
        )
    return engine
