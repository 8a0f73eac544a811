"""The published weights of EfficientNet-Lite0, a local checkpoint's or untrained ones, written for every engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.zoo import imagenet

if TYPE_CHECKING:
    from rich.progress import Progress


def make(out: Path, weights: str | None, progress: Progress) -> dict[str, Any]:
    """Write the files that model.toml names; returns how far the engines agree. weights: PATH, "imagenet" or "none"."""
    return imagenet.make(Path(__file__).parent, out, weights, progress)
