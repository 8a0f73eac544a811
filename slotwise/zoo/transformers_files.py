"""Copy a pretrained model of transformers into a model's folder, from a local folder or from the hub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from slotwise.errors import SlotwiseError, first_line

SMALL_BYTES = 20 << 20
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def ready() -> None:
    """Import transformers without progress bars and warnings, also where torchvision does not fit torch."""
    from slotwise.worker.engines.torchvision_compat import ensure_importable  # noqa: PLC0415  brings torch

    ensure_importable()
    import transformers  # noqa: PLC0415  heavy, optional

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def save_local(weights: str, folder: Path, *classes: str) -> None:
    """Load each of transformers' `classes` from `weights` (a folder, or an id of the hub) and save it into `folder`.

    Only what an id names is downloaded. A repository without safetensors (M2M100's) is read with torch's weights_only=True, and
    transformers does not ask the hub to convert it. Raises SlotwiseError where there is no such folder or it lacks a file.
    """
    os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"
    import transformers  # noqa: PLC0415  heavy, optional

    local = Path(weights).expanduser()
    if not local.is_dir() and not HUB_ID.fullmatch(weights):
        raise SlotwiseError(f"there is no folder {weights}", "give a folder of from_pretrained, or an id like OWNER/MODEL")
    if local.is_dir() and not (local / "config.json").is_file():
        raise SlotwiseError(f"{weights} has no config.json", "give a folder that save_pretrained wrote")
    if local.is_dir() and not any(local.glob("*.safetensors")) and (pickles := sorted(local.glob("*.bin"))):
        hint = "where you trust it, load it once with from_pretrained and save_pretrained it: that writes model.safetensors"
        raise SlotwiseError(f"{weights} has its weights in {pickles[0].name}, which is a pickle", hint)
    try:
        for name in classes:
            source: Any = local if local.is_dir() else weights
            loaded = getattr(transformers, name).from_pretrained(source, local_files_only=local.is_dir())
            save(loaded, folder)
    except (OSError, ValueError, RuntimeError) as error:
        hint = "are all files of the model there?"
        raise SlotwiseError(f"{weights} cannot be loaded: {first_line(error)}", hint) from error


def useful_threads(folder: Path) -> int | None:
    """1 where the weights are so small that a second thread makes them slower; None: as many threads as there are cores."""
    size_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return 1 if size_bytes < SMALL_BYTES else None


def save(loaded: Any, folder: Path, **options: Any) -> None:
    """Call `loaded.save_pretrained(folder)`, then let everybody read the weights, which transformers does not."""
    loaded.save_pretrained(folder, **options)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)
