"""Try the thirty models and print what became of each: python -m tests.thirty [NAME ...]"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.thirty.all_of_them import THIRTY
from tests.thirty.trial import tried

if __name__ == "__main__":
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        os.environ["SLOTWISE_HOME"] = f"{name}/home"
        for one in [one for one in THIRTY if not wanted or one.name in wanted]:
            try:
                result = tried(one, Path(name))
            except Exception:
                import traceback

                traceback.print_exc()
                told = f"{result.answers} answers, {len(result.wrong)} wrong, {len(result.lost)} lost"
            print(f"{one.name}: {', '.join(result.engines)} {told} {result.said}", flush=True)
            for line in [*result.wrong[:2], *result.lost[:2]]:
                print("   ", line, flush=True)
