"""Load what `save_pretrained` wrote, from a local folder alone and without transformers' warnings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotwise.worker.engines.torchvision_compat import ensure_importable

TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def dtype_of(precision: str) -> Any:
    """torch's dtype of a precision's name. Raises ValueError for one that transformers does not serve."""
    import torch

    if precision not in TORCH_NAMES:
        raise ValueError(f"transformers serves {', '.join(TORCH_NAMES)}, not {precision}")
    return getattr(torch, TORCH_NAMES[precision])


def load_pretrained(architecture: str, folder: Path, device: str, dtype: Any, **options: Any) -> Any:
    """A model of transformers' class `architecture`, ready to generate. Raises FileNotFoundError where it is not."""
    if not (folder / "config.json").is_file():  # transformers would take the path for a repository's id
        raise FileNotFoundError(f"there is no config.json in the folder {folder.name}")
    ensure_importable()
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kind = getattr(transformers, architecture)
    model = kind.from_pretrained(folder, dtype=dtype, local_files_only=True, **options).to(device).eval()
    model.generation_config.max_length = None  # beside max_new_tokens, every call would warn
    return model
