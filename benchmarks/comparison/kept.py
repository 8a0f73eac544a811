"""A part's readings, round by round, kept in its JSON: what was measured before is not measured again."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measuring import rounds
from benchmarks.measuring.rounds import Cell, Reading, Readings

Round = list[dict[str, Any]]  # one reading each, with its cell and system
Measure = Callable[[Cell, str], Reading]


def earlier(file: Path | None, plan: Mapping[str, Any]) -> dict[str, Any]:
    """What the file has of an earlier run of the same plan; {} where it has none."""
    if file is None or not file.is_file():
        return {}
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found if found.get("plan") == json.loads(json.dumps(plan)) else {}


def one_round(turn: int, cells: Mapping[Cell, Sequence[str]], measure: Measure, say: Callable[[str], None]) -> Round:
    """Every system once in each of its cells, in an order that turns by one each round."""
    return [
        {"workload": cell[0], "concurrency": cell[1], "system": system, **asdict(reading)}
        for cell, system, reading in rounds.one_round(turn, cells, measure, say)
    ]


class Clock:
    """Says whether there is time for one more round that takes as long as the longest so far."""

    def __init__(self, minutes: float) -> None:
        self.ends, self.longest = time.monotonic() + 60 * minutes, 0.0

    def time_left(self) -> bool:
        """Whether another round fits."""
        return time.monotonic() + self.longest < self.ends

    def timed(self, work: Callable[[], Round]) -> Round:
        """One round, whose time counts."""
        began = time.monotonic()
        done = work()
        self.longest = max(self.longest, time.monotonic() - began)
        return done


def readings(done: Sequence[Round]) -> Readings:
    """The rounds by cell and system: the systems that every round has."""
    gathered: Readings = {}
    for row in (row for one in done for row in one):
        keys = ("workload", "concurrency", "system")
        reading = Reading(**{key: value for key, value in row.items() if key not in keys})
        gathered.setdefault((row["workload"], row["concurrency"]), {}).setdefault(row["system"], []).append(reading)
    whole = {cell: {name: got for name, got in by.items() if len(got) == len(done)} for cell, by in gathered.items()}
    return {cell: by for cell, by in whole.items() if by}


def left_out(done: Sequence[Round], why: Mapping[str, str]) -> dict[str, str]:
    """The systems that not every round has, and why: in how many it is, or else what kept it from starting, of any run."""
    had = Counter(name for one in done for name in {row["system"] for row in one})
    missing = (name for name in dict.fromkeys([*why, *had]) if had[name] < len(done))
    return {name: f"it is in {had[name]} of {len(done)} rounds" if had[name] else why[name] for name in missing}
