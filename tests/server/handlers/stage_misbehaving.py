"""How the models of both stages misbehave."""

from __future__ import annotations

import os
import time
from typing import Any


def misbehave(todo: list[str], rows: list[Any], names: list[str]) -> list[Any]:
    """What a model gives for rows (dicts with an id) of which each wants something. names: what may not be told to others."""
    if "exit" in todo:
        os._exit(3)
    if "sleep" in todo:
        time.sleep(60)
    if "raise" in todo:
        raise ValueError(f"all of the batch: {names}")
    outputs = [dict(row) for row in rows]
    if "mutate" in todo:
        rows.reverse()
        rows[1:] = []
    if "few" in todo:
        return outputs[:-1]
    return [*outputs, outputs[0]] if "many" in todo else outputs
