"""A model that cannot be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotwise.worker import BatchHandler, Settings


class Broken(BatchHandler):
    """Its weights are never there."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        raise FileNotFoundError("weights.bin is not in the archive")


handle = Broken.entry_point()
