"""A plugin of coverage.py: count an archive's copy of the worker as the worker, file by file, where it is the same to the byte.

An archive is served by its own copy, in a child process with the archive's folder on PYTHONPATH. That folder is gone at the
end of the tests, so each process looks as it starts. A file of an earlier release has other lines, and is not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coverage import CoveragePlugin

ROOT = Path(__file__).resolve().parents[1]


class Copies(CoveragePlugin):
    """Adds the copies on this process's path to what is measured."""

    def configure(self, config: Any) -> None:
        """Called once a process, before anything is measured."""
        config.set_option("run:include", [*config.get_option("run:include"), *map(str, copies(sys.path))])


def copies(path: Iterable[str]) -> list[Path]:
    """The files below this path that are the worker's, and as they are here."""
    ours = {file.relative_to(ROOT): file.read_bytes() for file in ROOT.glob("slotwise/worker/**/*.py")}
    folders = [Path(entry).resolve() for entry in dict.fromkeys(path)]
    archives = [folder for folder in folders if folder != ROOT and (folder / "slotwise" / "worker").is_dir()]
    found = [(folder / name, text) for folder in archives for name, text in ours.items()]
    return [file for file, text in found if file.is_file() and file.read_bytes() == text]


def coverage_init(registry: Any, options: dict[str, Any]) -> None:
    """What coverage.py calls."""
    registry.add_configurer(Copies())
