"""The tables and the picture of docs/neighbours.md and measured-neighbours.md: innocents beside one hostile neighbour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages.tables import number, table

Figures = Mapping[str, Any]
Row = Mapping[str, Any]
SMUGGLED = "hidden answered"
LATE_MS = 1000  # beyond the quiet p99: said in the overview, too


def harmed(row: Row) -> float:
    """The share of the innocents that were lost or answered wrongly."""
    return float((row["lost"] + row["wrong"]) / max(1, row["sent"]))


def percent(share: float) -> str:
    """As people read it; what is not quite nothing is not 0%."""
    return "0" if share == 0 else "under 1%" if share < 0.01 else f"{share:.0%}"


def again(row: Row, limit_s: float | None = None) -> str:
    """Seconds until it was well."""
    if row["well_s"] is None:
        return f"not within {limit_s:.0f} s" if limit_s else "not"
    return f"{row['well_s']:.1f}"


def cell(row: Row | None) -> str:
    """One cell in a few words: what was lost, wrong and refused, how late the others were, and seconds until it was well."""
    if row is None:
        return ""
    if "why" in row:
        return "-"
    words = [f"{percent(row[kind] / max(1, row['sent']))} {kind}" for kind in ("lost", "wrong", "refused") if row[kind]]
    if row["neighbour"].get(SMUGGLED):
        words.append(f"{row['neighbour'][SMUGGLED]} answered twice")
    if row["p99_ms"] > row["quiet_p99_ms"] + LATE_MS:
        words.append(f"p99 {row['p99_ms'] / 1000:.1f} s")
    if row["well_s"] is None:
        words.append("not well again")
    elif row["well_s"] >= 1:
        words.append(f"well after {row['well_s']:.0f} s")
    return ", ".join(words) or "all right"


def overview(figures: Figures) -> str:
    """A line a server, a column a neighbour."""
    found = figures["neighbours"]
    names = found["neighbours"]
    lines = [[name, *(cell(part["rows"].get(each)) for each in names)] for name, part in found["parts"].items()]
    return table(["server", *names], lines)


def details(figures: Figures) -> str:
    """A table a neighbour, with every figure."""
    found = figures["neighbours"]
    limit_s = found["plan"]["limit_s"]
    columns = [
        "server",
        "innocents sent",
        "lost",
        "refused",
        "wrong",
        "of these another's",
        "p99 ms, quiet",
        "beside it",
        "s until well",
    ]
    texts = []
    for name in found["neighbours"]:
        lines: list[list[Any]] = []
        for system, part in found["parts"].items():
            row = part["rows"].get(name)
            if row is None:
                continue
            if "why" in row:
                lines.append([system, *[None] * 8, row["why"]])
                continue
            counts = [row[key] for key in ("sent", "lost", "refused", "wrong")] + [row.get("swapped") if row["wrong"] else None]
            waits = [number(row[key]) for key in ("quiet_p99_ms", "p99_ms")]
            answered = ", ".join(f"{count} x {status}" for status, count in row["neighbour"].items())
            lines.append([system, *counts, *waits, again(row, limit_s), answered])
        texts.append(f"### {name[0].upper()}{name[1:]}\n\n{table([*columns, 'the neighbour got'], lines)}")
    return "\n\n".join(texts)


def settings(figures: Figures) -> str:
    """What was set at each server, and what was left out."""
    found = figures["neighbours"]
    lines = []
    for name, part in found["parts"].items():
        used = part["settings"]
        numbers = [used[key] for key in ("processes", "batch_size", "delay_ms")]
        load = " to ".join(f"{value:.1f}" for value in part["load"])
        lines.append([name, *numbers, part["remedies"], ", ".join(used["packages"]), load, part["commit"][:7]])
    columns = ["server", "processes", "batch", "delay ms", "set against neighbours", "version", "load of the machine", "commit"]
    left_out = "".join(f"\n* {name} is left out: {why}" for name, why in found["left_out"].items())
    return table(columns, lines) + (f"\n{left_out}" if left_out else "")


def draw(found: Figures, path: Path) -> None:
    """A field a server and neighbour: green where every innocent was answered rightly, red where none was."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names, systems = found["neighbours"], [*found["parts"]]
    figure, panel = pyplot.subplots(figsize=(3.2 + 0.95 * len(names), 2.2 + 0.42 * len(systems)))
    colours = matplotlib.colormaps["RdYlGn_r"]
    for y, system in enumerate(systems):
        for x, name in enumerate(names):
            row = found["parts"][system]["rows"].get(name)
            known = row is not None and "why" not in row
            share = harmed(row) if known and row is not None else 0.0
            bad = known and row is not None and (row["well_s"] is None or row["neighbour"].get(SMUGGLED))
            panel.add_patch(
                pyplot.Rectangle((x, y), 0.96, 0.92, facecolor=colours(0.08 + 0.9 * share**0.5) if known else "#e4e4e4")
            )
            text = (percent(share) + ("!" if bad else "")) if known else ""
            panel.text(x + 0.48, y + 0.48, text, ha="center", va="center", fontsize=7)
    panel.set_xlim(0, len(names))
    panel.set_ylim(len(systems), 0)
    panel.set_xticks([x + 0.48 for x in range(len(names))], names, rotation=35, ha="right", fontsize=8)
    panel.set_yticks([y + 0.46 for y in range(len(systems))], systems, fontsize=8)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    panel.set_title(
        "innocents lost or answered wrongly beside one neighbour (!: not well again, or a hidden request answered)",
        fontsize=9,
        loc="left",
    )
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


TABLES: dict[str, Callable[[Figures], str]] = {
    "neighbours.overview": overview,
    "neighbours.details": details,
    "neighbours.settings": settings,
}
