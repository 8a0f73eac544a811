"""The tables of what the campaign and the disasters counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.pages.tables import number, table

Figures = Mapping[str, Any]
SOAKED = 4  # processes of a server that are shown


def campaign_rows(figures: Figures) -> str:
    """What each part of the campaign counted."""
    keys = ("cases", "full", "requests", "innocents", "lost", "wrong", "refused", "unplanned", "hangs", "leaks", "restarts")
    parts = figures["campaign"]["parts"]
    lines = [
        [
            f"{name}, on {part['server']}" if part.get("server") else name,
            f"{part['scale']:.0%}",
            *(part[key] for key in keys),
            f"{part['seconds'] / 60:.0f}",
            part["commit"][:7],
            part["cpu"],
        ]
        for name, part in parts.items()
    ]
    return table(["part", "scale", "cases", "of", *keys[2:], "minutes", "commit", "processor"], lines)


def campaign_soak(figures: Figures) -> str:
    """Each server's longest-lived processes while it was soaked: what they held, and by how much that grew."""
    lines: list[list[Any]] = []
    for kind, soaked in figures["campaign"]["parts"].get("soak", {}).get("measured", {}).items():
        processes = soaked.get("processes", {})
        largest = sorted(processes, key=lambda role: -processes[role]["held"]["memory_mib"])[:SOAKED]
        load = [kind, soaked["seconds"], number(soaked["capacity"]), number(soaked["rate"])] if processes else []
        for role in sorted(largest, key=list(processes).index):
            held, growth = processes[role]["held"], processes[role]["growth"]
            cells = [f"{number(held[what])} ({growth[what][0]:+.0f} ± {growth[what][1]:.0f})" for what in held]
            lines.append([*load, role, processes[role]["seconds"], *cells])
            load = [None] * 4
    columns = ["server", "seconds", "does a second", "gets a second", "process", "seen after its warm-up, s"]
    return table([*columns, "memory, MiB", "threads", "files", "sockets"], lines) if lines else "Not in this run."


def campaign_hostile(figures: Figures) -> str:
    """What became of sixteen innocents beside one hostile client."""
    measured = figures["campaign"]["parts"].get("hostile", {}).get("measured", {})
    keys = ("answered", "lost", "refused", "wrong", "late", "unready", "p99_ms", "longest_ms", "memory_mb")
    lines = [[name, *(number(row.get(key, 0)) for key in keys)] for name, row in measured.items()]
    columns = ["the hostile client sends", "innocents answered", "lost", "refused", "wrong", "late", "not ready"]
    return table([*columns, "p99 ms", "longest ms", "memory, MB"], lines) if lines else "Not in this run."


def disasters_rounds(figures: Figures) -> str:
    """Killer bodies, SIGKILLs, scales and swaps under load."""
    lines = []
    for i, row in enumerate(figures["disasters"]["rounds"], 1):
        statuses = " ".join(map(str, row["its_statuses"]))
        lines.append([i, row["killer"], statuses, row["workers_it_ended"], row["server_then"], row["lost"], row["seconds"]])
    return table(["round", "killer", "its statuses", "workers it ended", "swap to", "innocent lost", "seconds"], lines)


TABLES: dict[str, Callable[[Figures], str]] = {
    "disasters.rounds": disasters_rounds,
    "campaign.rows": campaign_rows,
    "campaign.soak": campaign_soak,
    "campaign.hostile": campaign_hostile,
}
