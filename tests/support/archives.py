"""What is in an archive."""

from __future__ import annotations

import zipfile
from pathlib import Path


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as source:
        return {name: source.read(name) for name in source.namelist() if not name.endswith("/")}
