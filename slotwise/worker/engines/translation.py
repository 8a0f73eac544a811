"""Which engine translates: `ctranslate2` (int8) or `transformers` (the reference).

`auto` takes the first of ORDER that is installed, that the profile's precision allows, and that passed the build's check:

    cpu     ctranslate2, transformers
    cuda    transformers (fp16), ctranslate2
"""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

from slotwise.worker.engines.ctranslate2 import CTranslate2Engine
from slotwise.worker.engines.m2m100 import M2M100Engine
from slotwise.worker.engines.pretrained import FOLDER, about, precision_of
from slotwise.worker.settings import Settings

logger = logging.getLogger(__name__)

ORDER = {"cpu": ("ctranslate2", "transformers"), "cuda": ("transformers", "ctranslate2")}
PRECISIONS = {"ctranslate2": ("auto", "int8"), "transformers": ("auto", "fp32", "bf16", "fp16")}


def load_engine(model_dir: Path, settings: Settings, *, beams: int, max_output_tokens: int) -> Any:
    """The engine that the profile names. Raises ValueError, one sentence, where it cannot be had."""
    name = _choose(settings, about(model_dir)["engines"])
    options: dict[str, Any] = {"threads": settings.threads, "beams": beams, "max_output_tokens": max_output_tokens}
    options["device"] = settings.device
    engine: Any
    if name == "ctranslate2":
        engine = CTranslate2Engine(model_dir / "int8", precision="int8", **options)
    else:
        engine = M2M100Engine(model_dir / FOLDER, precision=precision_of(settings), **options)
    logger.info("engine %s, %s, on %s with %d threads", engine.name, engine.precision, engine.device, settings.threads)
    return engine


def _choose(settings: Settings, passed: list[str]) -> str:
    order = ORDER[settings.device]
    if settings.engine not in ("auto", *order):
        raise ValueError(f"engine is {settings.engine!r}, but translation takes auto or one of {', '.join(sorted(order))}")
    for name in order if settings.engine == "auto" else (settings.engine,):
        if name in passed and settings.precision in PRECISIONS[name] and importlib.util.find_spec(name):
            return name
    raise ValueError(
        f"{settings.engine} in {settings.precision} cannot translate here: not installed, not of that precision, or refused"
        f" by the build (it passed {', '.join(passed)})"
    )
