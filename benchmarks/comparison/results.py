"""From the comparison's rows to its ratios and its figure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.comparison.parts import DEFAULT
from benchmarks.measuring.rounds import Ratio, Row, by_cell, ratio


def ratios(table: Sequence[Row]) -> dict[str, dict[str, dict[str, float | None]]]:
    """The medians of `against` for our fastest system, by workload and number of clients."""
    ratios: dict[str, dict[str, dict[str, float | None]]] = {}
    for (workload, clients), cell in by_cell(table).items():
        ours = fastest(cell, "ours")
        if ours is not None:
            medians = {name: other and other.median for name, other in against(cell, ours).items()}
            ratios.setdefault(workload, {})[str(clients)] = medians
    return ratios


def against(cell: Mapping[str, Row], ours: Row) -> dict[str, Ratio | None]:
    """One of our systems against stock, against the fastest peer, and against the raw loop on the same engine."""
    others = {
        "vs_stock": cell.get("stock"),
        "vs_best_peer": fastest(cell, "peer"),
        "vs_raw": cell.get(ours["system"].replace("slotwise", "raw")),
    }
    return {name: ratio(ours["rounds"], other["rounds"]) if other else None for name, other in others.items()}


def fastest(cell: Mapping[str, Row], kind_of_system: str) -> Row | None:
    """The row with the highest rps among the systems of this kind that name what they compute in."""
    rows = (row for name, row in cell.items() if kind(name) == kind_of_system and name != DEFAULT)
    return max(rows, key=lambda row: row["rps"], default=None)


def kind(system: str) -> str:
    """ours, raw, stock or peer."""
    return {"slotwise": "ours", "raw": "raw", "stock": "stock"}.get(re.split("[-,]", system)[0], "peer")


COLOURS = {"ours": "#c2571a", "raw": "#9a9a9a", "stock": "#3b6ea5", "peer": "#7fa3c7"}


def draw(table: Sequence[Row], path: Path, title: str) -> None:
    """One panel a workload and number of clients, one bar a system, a dot a round."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cells = by_cell(table)
    most = max(map(len, cells.values()))
    figure, panels = pyplot.subplots(1, len(cells), figsize=(4.4 * len(cells), 1.2 + 0.42 * most), squeeze=False)
    for panel, (cell, systems) in zip(panels[0], cells.items(), strict=True):
        ranked = sorted(systems.values(), key=lambda row: row["rps"])
        for i, row in enumerate(ranked):
            panel.barh(i, row["rps"], color=COLOURS[kind(row["system"])], height=0.65)
            panel.plot(row["rounds"], [i] * len(row["rounds"]), ".", color="black", markersize=3)
            panel.text(row["rps"], i, f" {row['rps']:.1f} ", va="center", fontsize=8, ha="left")
        panel.set_yticks(range(len(ranked)), [row["system"] for row in ranked], fontsize=8)
        panel.set_title(f"{cell[0]}, {cell[1]} clients", fontsize=9, loc="left")
        panel.margins(x=0.18)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xlabel("pictures a second", fontsize=8)
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
