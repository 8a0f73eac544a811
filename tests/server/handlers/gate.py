"""A worker that answers once there is a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from slotwise.worker import BatchHandler, Headers, Settings


def wait_for(paths: list[Path]) -> list[str]:
    """Wait until all of them exist."""
    while not all(path.exists() for path in paths):
        time.sleep(0.01)
    return [str(path) for path in paths]


class Gate(BatchHandler):
    """A body is the file's path. An item is no text: a build would try others, and wait for them."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return wait_for

    def example(self) -> Any:
        return Path("/")

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [Path(body.decode())]

    def collate(self, items: list[Any]) -> Any:
        return items


handle = Gate.entry_point()
