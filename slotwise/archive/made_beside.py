"""What a make.py leaves in its own folder, such as a log or a download: as it left it, a file is no input of its result.

Only what this process itself opens for writing is known to be make.py's. All else may be a person's, and counts as an input.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from slotwise.worker.environment.digests import file_sha256

LEFT = "left.json"  # of a model's shelf: {folder: {path: SHA-256}}

_heard: list[set[str]] = []


def left_beside(script: Path, shelf: Path) -> dict[str, str]:
    """The digests of the files that this make.py has left in its folder, by their paths there."""
    return _read(shelf).get(str(script.parent.resolve()), {})


@contextmanager
def noting_what_is_left(script: Path, shelf: Path) -> Iterator[None]:
    """Note what is written below the script's folder meanwhile."""
    _listen()
    written, folder = set[str](), script.parent.resolve()
    _heard.append(written)
    try:
        yield
    finally:
        _heard.remove(written)
        files = [path for path in map(Path, map(os.path.realpath, written)) if path.is_relative_to(folder) and path.is_file()]
        if files:
            left = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}
            noted = {**_read(shelf), str(folder): {**left_beside(script, shelf), **left}}
            partial = shelf / f"{LEFT}.partial"
            partial.write_text(json.dumps(noted), "utf-8")
            partial.replace(shelf / LEFT)


def _read(shelf: Path) -> dict[str, dict[str, str]]:
    try:
        return dict(json.loads((shelf / LEFT).read_text("utf-8")))
    except (OSError, ValueError):
        return {}


@cache
def _listen() -> None:
    sys.addaudithook(_hear)  # it stays for as long as the process does


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if not _heard or event not in ("open", "os.rename"):
        return
    path = arguments[1] if event == "os.rename" else arguments[0]
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        return
    if isinstance(path, str | bytes | os.PathLike):
        _heard[-1].add(os.path.abspath(os.fsdecode(path)))
