"""The tables of a client beside a crowd, and of adversaries of a host that sets itself.

On a page: `fairness.rows` and `adversaries.rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.pages.tables import number, table

Figures = Mapping[str, Any]


def fairness(figures: Figures) -> str:
    """A line a model: what the second client waits alone and beside the first, and what it may."""
    lines = []
    for row in figures["fairness"]["rows"]:
        keys = ("full_batch_ms", "alone_p50_ms", "alone_p99_ms", "beside_p50_ms", "beside_p99_ms", "allowed_ms")
        lost = sum(one["beside"]["many_lost"] for one in row["rounds"])
        lines.append([row["model"], row["batch_size"], *(number(row[key]) for key in keys), _yes(row["held"]), lost])
    columns = ["model", "batch size", "a full batch, ms", "alone, p50 ms", "p99", "beside 512, p50 ms", "p99", "at most"]
    return table([*columns, "held", "lost"], lines)


def adversaries(figures: Figures) -> str:
    """A line an adversary: what was lost or wrong in all rounds, changes of workers, the waits, and when it was over."""
    lines = []
    for row in figures["adversaries"]["rows"]:
        back = "not within a minute" if row["longest_back_s"] is None else number(row["longest_back_s"])
        counts = [row[key] for key in ("right", "lost", "wrong", "poisoned", "changes")]
        lines.append([row["name"], *counts, number(row["p99_before_ms"]), number(row["p99_meanwhile_ms"]), back])
    columns = ["adversary", "right", "lost", "wrong", "poisoned", "changes of workers", "p99 ms before", "meanwhile"]
    return table([*columns, "seconds until the target is kept"], lines)


def _yes(held: bool) -> str:
    return "yes" if held else "**no**"


TABLES: dict[str, Callable[[Figures], str]] = {"fairness.rows": fairness, "adversaries.rows": adversaries}
