"""Choose the engine: the one that the profile names, else the first that can serve this archive here.

Pictures, tensors, captions and translation all choose here. They differ in which engines there are, and in what speaks
against one of them.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from slotwise.worker.environment.settings import Settings

logger = logging.getLogger(__name__)


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
        except Exception:
            logger.warning("%s cannot serve this archive here: trying the next engine", name, exc_info=True)
    return start(names[-1])
