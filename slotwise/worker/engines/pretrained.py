"""Load what transformers' `save_pretrained` wrote: from a local folder only, and without transformers' warnings.

An archive keeps it in `model/`. `model/slotwise.json` has what the build knows about these weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotwise.worker.engines.processor import set_up_cuda
from slotwise.worker.engines.torchvision_compat import ensure_importable
from slotwise.worker.environment.settings import Settings

FOLDER, ABOUT = "model", "slotwise.json"
TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def about(model_dir: Path) -> dict[str, Any]:
    """What make.py wrote about the weights: `note` (sent with every answer, or None), `threads`, and the model's own facts."""
    facts: dict[str, Any] = json.loads((model_dir / FOLDER / ABOUT).read_text("utf-8"))
    return facts


def suited(settings: Settings, facts: Mapping[str, Any]) -> Settings:
    """The settings with no more threads than these weights gain from; libraries that are loaded later are told so, too.

    That is `facts["threads"]`, where it is given: the demonstration models are several times slower with two threads than
    with one. On CUDA this also limits this worker's share of the GPU's memory.
    """
    if settings.device == "cuda":  # pragma: no cover  needs a GPU
        set_up_cuda(settings.memory_fraction)
    fitting = settings.but(threads=min(settings.threads, facts.get("threads") or settings.threads))
    fitting.limit_threads()  # CTranslate2's MKL goes by the environment, whatever its caller names
    return fitting


def precision_of(settings: Settings) -> str:
    """The precision to compute in: "fp32", "bf16" or "fp16".

    "auto" is fp16 on CUDA, and fp32 on the CPU, where batch-mates hardly ever change an answer.
    """
    precision = settings.precision
    if precision == "auto":
        return "fp16" if settings.device == "cuda" else "fp32"
    if precision not in TORCH_NAMES:
        raise ValueError(f"precision is {precision}, but transformers serves auto, {', '.join(TORCH_NAMES)}")
    return precision


def load_pretrained(
    architecture: str, folder: Path, device: str, precision: str, spare: tuple[str, ...] | None = None, **options: Any
) -> Any:
    """A model of transformers' class `architecture`, ready to run. Raises FileNotFoundError where `folder` has none.

    spare: with which names tensors begin that may be missing; transformers makes up what is missing. None: nothing is asked.
    Raises ValueError where others are.
    """
    if not (folder / "config.json").is_file():  # transformers would take the path for a repository's id
        raise FileNotFoundError(f"there is no config.json in the folder {folder.name}")
    ensure_importable()
    import torch  # noqa: PLC0415  heavy
    import transformers  # noqa: PLC0415  heavy, optional

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options = {"dtype": getattr(torch, TORCH_NAMES[precision]), "local_files_only": True, **options}
    model, told = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True, **options)
    missing = sorted(name for name in told["missing_keys"] if spare is not None and not name.startswith(spare))
    if missing:
        raise ValueError(f"its weights lack {', '.join(missing[:3])}{' ...' * (len(missing) > 3)}, which would be made up")
    model = model.to(device).eval()
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.max_length = None  # beside max_new_tokens, every call would warn
    return model


def release(device: str) -> None:
    """Free what a failed call holds on the device."""
    import torch  # noqa: PLC0415  heavy

    if device.startswith("cuda"):  # pragma: no cover  needs a GPU
        torch.cuda.empty_cache()
