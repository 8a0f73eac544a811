"""Remember how far a reduced precision is from fp32, once an extraction and machine.

An answer of bf16 or int8 depends on the processor, so no build can vouch for it. The first worker compares, and leaves the
figure in `.precision.json` beside the extracted archive for the next worker.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotwise.worker.engines.versions import environment

logger = logging.getLogger(__name__)

FILE = ".precision.json"


def known(model_dir: Path, name: str, precision: str, weights: Mapping[str, str]) -> float | None:
    """The difference that an earlier worker measured for this engine on such a machine; None where none did.

    weights: file names below `model_dir`, by form.
    """
    verdict = read(model_dir / FILE, _key(model_dir, name, precision, weights))
    if not isinstance(verdict, dict) or "largest_difference" not in verdict:
        return None
    figure = verdict["largest_difference"]
    return math.inf if figure is None else float(figure)


def remember(model_dir: Path, name: str, precision: str, weights: Mapping[str, str], figure: float) -> None:
    """Leave the figure for the next worker. Where the folder is read-only, that one compares again."""
    verdict = {"engine": f"{name}-{precision}", "largest_difference": figure if math.isfinite(figure) else None}
    write(model_dir / FILE, _key(model_dir, name, precision, weights), verdict)


def read(path: Path, key: str) -> Any:
    """What an earlier worker left in this file under this key; None where there is nothing."""
    return _content(path).get(key)


def write(path: Path, key: str, value: Any) -> None:
    """Leave a value for the next worker, if the folder can be written.

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


def _key(model_dir: Path, name: str, precision: str, weights: Mapping[str, str]) -> str:
    """A digest of what the figure depends on: engine, precision, versions, processor, weights."""
    files = [model_dir / file.split(":")[0] for _, file in sorted(weights.items())]
    stamps = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]
    facts = json.dumps([name, precision, environment(name), stamps])
    return hashlib.sha256(facts.encode()).hexdigest()[:16]
