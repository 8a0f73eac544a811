"""A worker that answers once there is a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from slotwise.worker import BatchHandler, Headers, Settings


def wait_for(paths: list[str]) -> list[str]:
    """Wait until all of them exist."""
    while not all(Path(path).exists() for path in paths):
        time.sleep(0.01)
    return paths


class Gate(BatchHandler):
    """A body is the file's path."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return wait_for

    def example(self) -> Any:
        return "/"

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [body.decode()]

    def collate(self, items: list[Any]) -> Any:
        return items


handle = Gate.entry_point()
