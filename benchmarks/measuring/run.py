"""One measurement from the command line to its JSON."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measuring.about import about
from slotwise.console import err
from slotwise.errors import SlotwiseError
from slotwise.interrupts import interruptible


def measured(part: Callable[[Path], dict[str, Any]], target: Path | None) -> dict[str, Any] | None:
    """What the part found, with what it depends on, written to `target`; None where a system cannot be started.

    part: takes a folder to work in. What it says about the `machine` is added to what is known of it. The result's `minutes` is
    how long it took.
    """
    known, began = about(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="slotwise-figures-") as name:
        try:
            result_of_part = part(Path(name))
        except (SlotwiseError, RuntimeError) as error:
            err().print(f"error: {error}", highlight=False)
            return None
    took = {"minutes": round((time.monotonic() - began) / 60, 1)}
    result = {**known, **took, **result_of_part, "machine": {**known["machine"], **result_of_part.get("machine", {})}}
    if target:
        write(target, result)
    return result


def write(target: Path, result: dict[str, Any]) -> None:
    """The JSON file as docs/figures has them."""
    target.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


def exit_with(main: Callable[[], int]) -> None:
    """End the process with what `main` returns; 130 after Ctrl-C."""
    try:
        with interruptible():
            sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except SlotwiseError as error:
        err().print(f"error: {error.message}", highlight=False)
        sys.exit(1)
