"""Write files that a program makes of the code, or check that they are what it would write."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path


def write_or_check(pages: Mapping[Path, str], about: str, command: str) -> int:
    """Write them, or with --check say which differ; the exit code. about: a program's docstring; command: how it is run."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a file differs")
    if not parser.parse_args().check:
        for file, content in pages.items():
            file.parent.mkdir(exist_ok=True)
            file.write_text(content, "utf-8")
        return 0
    stale = [file.name for file, content in pages.items() if not file.is_file() or file.read_text("utf-8") != content]
    for name in stale:
        print(f"{name} is not what would be written: run `{command}`", file=sys.stderr)
    return 1 if stale else 0
