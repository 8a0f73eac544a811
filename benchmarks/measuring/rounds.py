"""Systems measured in turn: rows with the medians, and ratios of what two systems reached in the same round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from slotwise.bench.load import LoadResult

WARM_UP_S = 30.0  # of a server that has just started: Java compiles what it runs often
Cell = tuple[str, int]  # a workload and a number of clients
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Reading:
    """One round of one system: answers a second, and what half and 99% of the clients waited at most.

    None: there were no clients, or no answers.
    shares: of the time of all cores that its first process, its others and the client had.
    """

    rps: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    failed: int = 0
    mean_batch: float | None = None
    shares: Mapping[str, float] | None = None

    @classmethod
    def of(cls, measured: LoadResult) -> Reading:
        """What a load gave."""
        return cls(measured.req_s, measured.p50_ms or None, measured.p99_ms or None, measured.lost, measured.mean_batch)


class Ratio(NamedTuple):
    """The median, the lowest and the highest of the rounds' ratios."""

    median: float
    low: float
    high: float


class MedianInterval(NamedTuple):
    """The 95% interval of a median."""

    low: float
    high: float


Readings = dict[Cell, dict[str, list[Reading]]]


def in_turn(
    cells: Iterable[Cell],
    systems: Sequence[str],
    measure: Callable[[Cell, str], Reading],
    rounds: int,
    *,
    say: Callable[[str], None],
    warm_ups: int = 0,
) -> Readings:
    """Every round measures every system once in every cell, in an order that turns by one each round.

    What disturbs the machine for a while disturbs all systems. warm_ups: rounds before that are not counted.
    """
    readings: Readings = {cell: {system: [] for system in systems} for cell in cells}
    for turn in range(-warm_ups, rounds):
        for cell, system, reading in one_round(turn, dict.fromkeys(readings, systems), measure, say):
            if turn >= 0:
                readings[cell][system].append(reading)
    return readings


def one_round(
    turn: int, cells: Mapping[Cell, Sequence[str]], measure: Callable[[Cell, str], Reading], say: Callable[[str], None]
) -> Iterator[tuple[Cell, str, Reading]]:
    """Every system once in each of its cells, in an order that turns by one each round; below 0 it is a warm-up."""
    for cell, systems in cells.items():
        first = turn % len(systems)
        for system in [*systems[first:], *systems[:first]]:
            reading = measure(cell, system)
            failed = f", {reading.failed} FAILED" if reading.failed else ""
            counted = f"round {turn + 1}" if turn >= 0 else "warm-up"
            say(f"{counted}: {cell[0]}, {cell[1]} clients, {system}: {reading.rps:.1f} a second{failed}")
            yield cell, system, reading


def rows(readings: Mapping[Cell, Mapping[str, Sequence[Reading]]], *, detail: bool = False) -> list[dict[str, Any]]:
    """One row a workload, number of clients and system: medians over the rounds, and the rounds' answers a second.

    Times are of the rounds that had answers. detail: also requests a batch, and requests that got no good answer in all
    rounds; these stand there in any case where there are any.
    """
    table = []
    for (workload, clients), systems in readings.items():
        for system, rounds in systems.items():
            row: dict[str, Any] = {"workload": workload, "concurrency": clients, "system": system}
            row["rps"] = round(statistics.median(r.rps for r in rounds), 2)
            for key in ("p50_ms", "p99_ms", *(["mean_batch"] if detail else [])):
                values = [getattr(r, key) for r in rounds if getattr(r, key) is not None]
                row[key] = round(statistics.median(values), 1) if values else None
            if all(r.shares for r in rounds):
                names = rounds[0].shares or {}
                row["shares"] = {name: round(statistics.median((r.shares or {})[name] for r in rounds), 3) for name in names}
            lost = sum(r.failed for r in rounds)
            if detail or lost:
                row["lost"] = lost
            table.append({**row, "rounds": [round(r.rps, 2) for r in rounds]})
    return table


def rows_beside(readings: Readings, other: str) -> list[dict[str, Any]]:
    """The rows in detail, each with its ratio to the system `other`: "to_torchserve", say."""
    table = rows(readings, detail=True)
    for row in table:
        bare = readings[row["workload"], row["concurrency"]][other]
        found = ratio(row["rounds"], [reading.rps for reading in bare])
        row[f"to_{other}"] = found._asdict() if found else None
    return table


def by_cell(table: Iterable[Row]) -> dict[Cell, dict[str, Row]]:
    """The rows by cell and system, in their order."""
    cells: dict[Cell, dict[str, Row]] = {}
    for row in table:
        cells.setdefault((row["workload"], row["concurrency"]), {})[row["system"]] = row
    return cells


def ratio(ours: Sequence[float], other: Sequence[float]) -> Ratio | None:
    """What the first reached for each of the second, round by round; None where the second answered nothing in a round."""
    if not all(other):
        return None
    each = [a / b for a, b in zip(ours, other, strict=True)]
    return Ratio(round(statistics.median(each), 2), round(min(each), 2), round(max(each), 2))


def median_interval(values: Sequence[float]) -> MedianInterval | None:
    """The two of these values between which their median lies in 95 of 100 cases; None for fewer than six.

    It assumes nothing of how they are spread: as many of n values lie below the true median as heads come up in n throws.
    """
    ordered, n = sorted(values), len(values)
    below, outside = -1, 0.0  # how many values may be left out at either end, and how often the median is beyond them
    while (outside := outside + 2 * math.comb(n, below + 1) / 2**n) <= 0.05:
        below += 1
    return MedianInterval(round(ordered[below], 2), round(ordered[n - 1 - below], 2)) if below >= 0 else None
