"""A part's readings, round by round, kept in its JSON: what was measured before is not measured again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
    readings: Round = []
    for cell, systems in cells.items():
        first = turn % len(systems)
        for system in [*systems[first:], *systems[:first]]:
            reading = measure(cell, system)
            failed = f", {reading.failed} FAILED" if reading.failed else ""
            say(f"round {turn + 1}: {cell[0]}, {cell[1]} clients, {system}: {reading.rps:.1f} a second{failed}")
            readings.append({"workload": cell[0], "concurrency": cell[1], "system": system, **asdict(reading)})
    return readings


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


def readings(rounds: Sequence[Round]) -> Readings:
    """The rounds by cell and system: the systems that every round has."""
    gathered: Readings = {}
    for row in (row for one in rounds for row in one):
        keys = ("workload", "concurrency", "system")
        reading = Reading(**{key: value for key, value in row.items() if key not in keys})
        gathered.setdefault((row["workload"], row["concurrency"]), {}).setdefault(row["system"], []).append(reading)
    whole = {cell: {name: got for name, got in by.items() if len(got) == len(rounds)} for cell, by in gathered.items()}
    return {cell: by for cell, by in whole.items() if by}
