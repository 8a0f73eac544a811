"""The engines that translate: `ctranslate2` (int8) and `transformers` (the reference).

    cpu     ctranslate2, transformers
    cuda    transformers (fp16), ctranslate2

`auto` takes the first of them that is installed, that computes in the profile's precision, and for which the archive
carries weights: a build leaves int8 out where it translates otherwise than the reference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotwise.worker.engines.choice import choose, installed
from slotwise.worker.engines.ctranslate2 import CTranslate2Engine
from slotwise.worker.engines.m2m100 import M2M100Engine
from slotwise.worker.engines.pretrained import FOLDER, precision_of
from slotwise.worker.environment.settings import Settings

INT8_FOLDER = "int8"
ORDER = {"cpu": ("ctranslate2", "transformers"), "cuda": ("transformers", "ctranslate2")}
PRECISIONS = {"ctranslate2": ("auto", "int8"), "transformers": ("auto", "fp32", "bf16", "fp16")}


def load_engine(model_dir: Path, settings: Settings, *, beams: int, max_output_tokens: int) -> Any:
    """The engine that the profile names. Raises ValueError, one sentence, where it cannot translate here."""
    device, threads = settings.device, settings.threads

    def objection(name: str) -> str | None:
        if not installed(name):
            return f"{name} is not installed"
        if settings.precision not in PRECISIONS[name]:
            return f"{name} does not compute in {settings.precision}"
        if name == "ctranslate2" and not (model_dir / INT8_FOLDER / "model.bin").is_file():
            return "the archive carries no weights for ctranslate2: the build refused them"
        return None

    def start(name: str) -> Any:
        options: dict[str, Any] = {"device": device, "threads": threads, "beams": beams, "max_output_tokens": max_output_tokens}
        if name == "ctranslate2":
            return CTranslate2Engine(model_dir / INT8_FOLDER, precision="int8", **options)
        return M2M100Engine(model_dir / FOLDER, precision=precision_of(settings), **options)

    return choose(settings, ORDER, objection, start)
