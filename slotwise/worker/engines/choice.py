"""Choose the engine: the one that the profile names, else the first that can serve this archive here.

Pictures, tensors, captions and translation all choose here. They differ in which engines there are, and in what speaks
against one of them.

An answer of bf16 or int8 depends on the processor, so no build can vouch for it. The first worker compares it with fp32, and
leaves the figure in `.precision.json` beside the extracted archive for the next worker.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from slotwise.worker.engines.versions import environment
from slotwise.worker.environment.settings import Settings

logger = logging.getLogger(__name__)

FILE = ".precision.json"


class Engine(Protocol):
    """What a handler calls. name: "torch", ...; precision: "fp32", "bf16", "fp16" or "int8"; device: "cpu" or "cuda".

    An engine that settles only after several runs of a shape says in `warm_up_runs` after how many.
    """

    name: str
    precision: str
    device: str

    def __call__(self, inputs: Any) -> Any:
        """[b, ...] to [b, ...]: exactly one output a row, in order."""


def choose(
    settings: Settings,
    order: Mapping[str, Sequence[str]],
    objection: Callable[[str], str | None],
    start: Callable[[str], Any],
) -> Any:
    """Start the engine that the profile names; for `auto` the first of order[device] that can serve and that starts.

    order: engine names by device, best first. objection(name): why an engine cannot serve this archive here, known before
    it is started; None where nothing is against it. start(name): load the engine and try it; may raise anything.

    Raises ValueError, one sentence, where no engine can serve; else what the last engine raised when it was started.
    """
    known = sorted({name for names in order.values() for name in names})
    if settings.engine not in ("auto", *known):
        raise ValueError(f"engine is {settings.engine!r}, but it must be auto or one of {', '.join(known)}")
    candidates = order[settings.device] if settings.engine == "auto" else (settings.engine,)
    objections = {name: objection(name) for name in candidates}
    usable = [name for name, reason in objections.items() if reason is None]
    if not usable:
        reasons = "; ".join(str(reason) for reason in objections.values())
        raise ValueError(f"no engine can serve this archive here: {reasons}")
    engine = _first_that_starts(usable, start)
    logger.info("engine %s, %s, on %s with %d threads", engine.name, engine.precision, engine.device, settings.threads)
    return engine


def output_of(model: Mapping[str, Any]) -> str | None:
    """The name of the ONNX graph's output that is served, where a build has written it down; None for the first."""
    name: str | None = model.get("options", {}).get("onnx", {}).get("output")
    return name


def installed(name: str) -> bool:
    """Whether the engine's package can be imported."""
    return importlib.util.find_spec(name) is not None


def _first_that_starts(names: Sequence[str], start: Callable[[str], Any]) -> Any:
    for name in names[:-1]:
        try:
            return start(name)
        except ValueError as error:
            logger.warning("%s cannot serve this archive here: %s; trying the next engine", name, error)
        except Exception:
            logger.warning("%s cannot serve this archive here: trying the next engine", name, exc_info=True)
    return start(names[-1])


def apart_from_fp32(
    model_dir: Path, name: str, precision: str, weights: Mapping[str, str], measure: Callable[[], float]
) -> float:
    """How far this engine is from fp32 on such a machine: as an earlier worker measured it, else as `measure` does now.

    weights: file names below `model_dir`, by form. Raises what `measure` raises.
    """
    files = [model_dir / file.split(":")[0] for _, file in sorted(weights.items())]
    stamps = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]
    key = key_of([name, precision, environment(name), stamps])
    kept = recall(model_dir / FILE, key)
    if isinstance(kept, dict) and "largest_difference" in kept:
        return math.inf if kept["largest_difference"] is None else float(kept["largest_difference"])
    figure = measure()
    logger.info("%s in %s differs from fp32 by at most %.4f", name, precision, figure)
    finite = figure if math.isfinite(figure) else None
    remember(model_dir / FILE, key, {"engine": f"{name}-{precision}", "largest_difference": finite})
    return figure


def key_of(facts: Any) -> str:
    """A digest of what a value depends on, to keep it under."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def recall(path: Path, key: str) -> Any:
    """What an earlier worker left in this file under this key; None where there is nothing."""
    return _content(path).get(key)


def remember(path: Path, key: str, value: Any) -> None:
    """Leave a value for the next worker, if the folder can be written. Else that one finds it out again.

    The file is replaced at once or not at all, because workers start side by side.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps({**_content(path), key: value}, indent=2), "utf-8")
        partial.replace(path)
    except OSError:
        logger.info("the next worker will find it out again: %s cannot be written", path)


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
