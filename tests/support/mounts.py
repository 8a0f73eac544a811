"""File systems of their own, small or not to be written."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def mount(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs of its own, where this user may mount one."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    yield folder
    deadline = time.monotonic() + 120
    while subprocess.run(["umount", str(folder)], check=False).returncode:  # who wrote there may just be ending
        assert time.monotonic() < deadline, f"{folder} is still used"
        time.sleep(0.2)
