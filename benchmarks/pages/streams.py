"""The tables of streams: steps beside closed batches, pieces a second beside LitServe and TorchServe, and what poison costs.

On a page: `decoded.rows`, `dropped.rows`, `unread.rows`, `by_steps.rows`, `streams_beside.rows`, `streams_beside.lost`,
`streams_beside.told` and `streams_beside.settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.measuring.rounds import Ratio, by_cell
from benchmarks.pages.tables import each, number, table, with_spread

Figures = Mapping[str, Any]
NAME = "streams_beside"
HARMS = {"lost": "lost", "cut_short": "cut short", "wrong": "wrong"}
TIMES = ("first_p50_ms", "first_p99_ms", "gap_p50_ms", "gap_p99_ms")


def by_steps(figures: Figures) -> str:
    """Closed batches and steps of the same network: answers a second, and the wait for the first piece."""
    lines = []
    for (load, clients), cell in by_cell(figures["by_steps"]["rows"]).items():
        closed, steps = cell["closed"], cell["steps"]
        answers = [number(closed["rps"]), number(steps["rps"]), with_spread(Ratio(**steps["to_closed"]))]
        waits = [number(closed["first_p99_ms"]), number(steps["first_p99_ms"])]
        harmed = closed["lost"] + steps["lost"]
        lines.append([load, clients, *answers, *waits, with_spread(Ratio(**steps["first_p99_to_closed"])), harmed])
    columns = ["answers", "clients", "closed, a second", "steps", "steps to closed", "first piece p99 ms, closed", "steps"]
    return table([*columns, "steps to closed", "lost"], lines)


def decoded(figures: Figures) -> str:
    """Captions and translation: closed batches and steps, with their ratios to closed batches in the same round."""
    lines = []
    for row in figures["decoded"]["rows"]:
        ratios = [with_spread(Ratio(**row[key]) if row[key] else None) for key in ("to_closed", "first_p99_to_closed")]
        times = [number(row[key]) for key in ("first_p50_ms", "first_p99_ms", "p50_ms", "p99_ms")]
        about = [row["workload"], row["concurrency"], row["system"], number(row["rps"]), each(row["rounds"])]
        lines.append([*about, ratios[0], *times, ratios[1], row["lost"]])
    columns = ["answers", "clients", "decoded", "a second", "rounds", "to closed", "first piece p50 ms", "first piece p99 ms"]
    return table([*columns, "whole p50 ms", "whole p99 ms", "first piece p99 to closed", "lost"], lines)


def dropped(figures: Figures) -> str:
    """Streams that are read, alone and beside those that are not; and what was left when all was over."""
    found = figures["dropped"]
    open_after, memory = sum(found["left"].values()), found["memory_mib"]
    lines = []
    for row in found["rows"]:
        about = [row["workload"], row["concurrency"], row["system"], number(row["rps"]), each(row["rounds"])]
        waits = [number(row[key]) for key in ("first_p50_ms", "first_p99_ms", "p50_ms", "p99_ms")]
        lines.append([*about, with_spread(Ratio(**row["to_alone"]) if row["to_alone"] else None), *waits, row["lost"]])
    columns = ["read", "clients", "how", "pieces a second", "rounds", "to alone", "first piece p50 ms", "first piece p99 ms"]
    columns += ["between pieces p50 ms", "between pieces p99 ms", "lost"]
    kept = f"{number(memory['before'])} MiB before, {number(memory['after'])} MiB after"
    cut = f"{found['cut_off']:.0f} readers cut off"
    return f"{table(columns, lines)}\n\nOpen when all was over: {open_after:.0f}. Memory of host and worker: {kept}; {cut}."


def unread(figures: Figures) -> str:
    """What innocents' streams became beside nobody, and beside long streams that are read and that are not."""
    lines = []
    for row in figures["unread"]["rows"]:
        asked = sum(row[key] for key in ("right", *HARMS))
        again = "no" if row["well_after_s"] is None else "at once" if not row["well_after_s"] else f"{row['well_after_s']:g} s"
        whole = number(row["whole_p50_ms"]) if row["whole_p50_ms"] else "-"
        about = [row["system"], row["beside"], number(row["streams_s"]), whole]
        lines.append([*about, *(row[key] for key in HARMS), asked, again, number(row["memory_mib"])])
    columns = ["system", "beside", "right streams a second", "one takes, p50 ms", *HARMS.values(), "of", "well again"]
    return table([*columns, "memory grew by, MiB"], lines)


def speeds(figures: Figures) -> str:
    """Pieces a second with the rounds, the ratio to LitServe in the same round, and the waits: median (lowest to highest)."""
    lines = []
    for row in figures[NAME]["rows"]:
        beside = Ratio(**row["to_LitServe"]) if row["to_LitServe"] else None
        waits = [with_spread(Ratio(**row[key])) for key in ("streams_s", *TIMES)]
        harmed = sum(row[key] for key in HARMS)
        lines.append(
            [row["system"], number(row["rps"]), each(row["rounds"]), with_spread(beside), *waits, harmed, row["right"]]
        )
    columns = [
        "system",
        "pieces a second",
        "rounds",
        "to LitServe",
        "streams a second",
        "first piece p50 ms",
        "first piece p99 ms",
    ]
    return table([*columns, "between pieces p50 ms", "between pieces p99 ms", "streams not right", "right"], lines)


def cell(row: Mapping[str, Any]) -> str:
    """What became of the innocents of one poison, in a few words."""
    harms = [f"{row[key]} {word}" for key, word in HARMS.items() if row[key]]
    again = [f"not well again ({row['not_well']} times)"] if row["not_well"] else []
    return f"{', '.join([*harms, *again]) or '0'} of {row['innocent']}"


def lost(figures: Figures) -> str:
    """A line a system, a column a poison: innocents' streams that were lost, cut short or wrong."""
    rows = figures[NAME]["poisoned"]
    poisons, systems = (dict.fromkeys(row[key] for row in rows) for key in ("poison", "system"))
    found = {(row["system"], row["poison"]): cell(row) for row in rows}
    lines = [[system, *(found.get((system, poison)) for poison in poisons)] for system in systems]
    return table(["system", *poisons], lines)


def told(figures: Figures) -> str:
    """What the innocents that were harmed, and the poisoned ones, were told."""

    def words(counts: Mapping[str, int]) -> str:
        return "; ".join(f"{count} x {what}".replace("|", "/") for what, count in counts.items())

    lines = []
    for row in figures[NAME]["poisoned"]:
        numbers = [number(row["pieces_s"]), number(row["first_p99_ms"])]
        lines.append([row["system"], row["poison"], *numbers, words(row["told"]), words(row["poisoned_told"])])
    columns = ["system", "poison", "good pieces a second", "first piece p99 ms", "innocents that were harmed got"]
    return table([*columns, "the poisoned got"], lines)


def settings(figures: Figures) -> str:
    """What each was set to, and what a piece took of the processor."""
    rows = {row["system"]: row for row in figures[NAME]["rows"]}
    lines = []
    for system, used in figures[NAME]["settings"].items():
        spent = [number(rows[system]["cpu_ms"][who]) for who in ("front", "workers", "client")]
        numbers = [used[key] for key in ("processes", "threads", "batch_size", "delay_ms")]
        lines.append([system, *numbers, used["front"], ", ".join(used["packages"]), *spent])
    columns = ["system", "workers", "threads", "streams at once", "delay ms", "beside them", "version"]
    return table([*columns, "processor ms a piece: its first process", "its others", "client"], lines)


TABLES: dict[str, Callable[[Figures], str]] = {
    "decoded.rows": decoded,
    "dropped.rows": dropped,
    "unread.rows": unread,
    "by_steps.rows": by_steps,
    f"{NAME}.rows": speeds,
    f"{NAME}.lost": lost,
    f"{NAME}.told": told,
    f"{NAME}.settings": settings,
}
