#!/usr/bin/env python
"""Build every model's archive into model_store/.

python scripts/build_archives.py [MODEL...] [--out DIR]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from slotwise.archive.build import build
from slotwise.errors import SlotwiseError
from slotwise.files import project


def main() -> int:
    """Build the models named on the command line, all of them by default; 1 where one could not be built."""
    parser = argparse.ArgumentParser(description="Build every model's archive into model_store/.")
    parser.add_argument("models", nargs="*", help="models' names or folders (default: all)")
    parser.add_argument("--out", type=Path, help="folder for the archives (default: model_store)")
    options = parser.parse_args()
    failed = 0
    for model in options.models or project.models():
        started = time.monotonic()
        try:
            path = _build(model, options.out)
        except SlotwiseError as error:
            failed = 1
            print(f"{model}: {error.message}\n  hint: {error.hint}", file=sys.stderr)
        else:
            print(f"{path}  {path.stat().st_size / 1e6:.1f} MB  {time.monotonic() - started:.1f} s", flush=True)
    return failed


def _build(model: str, out: Path | None) -> Path:
    """The archive; untrained, and said so, where its weights are not to be had here and the model has such a form."""
    try:
        return build(model, out)
    except SlotwiseError as error:
        if "--weights none" not in error.hint:
            raise
        print(f"{model}: {error.message}: building it untrained", file=sys.stderr, flush=True)
        return build(model, out, "none")


if __name__ == "__main__":
    sys.exit(main())
