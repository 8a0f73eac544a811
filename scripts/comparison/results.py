"""From readings to the comparison's JSON, table and figure."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comparison.systems import Reading
from slotwise.worker.engines.processor import has_bf16

Cell = tuple[str, int]  # a workload and a number of clients


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    import os
    from importlib.metadata import version

    lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines() if Path("/proc/cpuinfo").exists() else []
    said = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines}
    flags = set(said.get("flags", "").split())
    packages = {name: version(name) for name in ("torch", "torchserve", "onnxruntime", "openvino", "pillow")}
    return {
        "cpu": said.get("model name", platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "avx2": "avx2" in flags,
        "avx512": "avx512f" in flags,
        "vnni": bool(flags & {"avx512_vnni", "avx_vnni"}),
        "bf16": has_bf16(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": packages,
    }


def rows(readings: Mapping[Cell, Mapping[str, Sequence[Reading]]]) -> list[dict[str, Any]]:
    """One row a workload, number of clients and system: medians over the rounds, and the rounds' answers a second."""
    made = []
    for (workload, clients), systems in readings.items():
        for system, rounds in systems.items():
            row: dict[str, Any] = {"workload": workload, "concurrency": clients, "system": system}
            row["rps"] = round(statistics.median(r.rps for r in rounds), 2)
            for key in ("p50_ms", "p99_ms"):
                times = [getattr(r, key) for r in rounds if getattr(r, key) is not None]
                row[key] = round(statistics.median(times), 1) if times else None
            made.append({**row, "rounds": [round(r.rps, 2) for r in rounds]})
    return made


def ratios(table: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Our fastest system against stock, against the fastest peer, and against the raw loop on the same engine.

    A ratio is the median over the rounds of what the two systems reached in the same round.
    """
    made: dict[str, dict[str, dict[str, float | None]]] = {}
    for workload, clients in dict.fromkeys((row["workload"], row["concurrency"]) for row in table):
        cell = {row["system"]: row for row in table if (row["workload"], row["concurrency"]) == (workload, clients)}
        ours = fastest(cell, "slotwise-")
        if ours is None:
            continue
        peer = max((row for name, row in cell.items() if kind(name) == "peer"), key=lambda row: row["rps"], default=None)
        against = {
            "vs_stock": cell.get("stock"),
            "vs_best_peer": peer,
            "vs_raw": cell.get(ours["system"].replace("slotwise", "raw")),
        }
        made.setdefault(workload, {})[str(clients)] = {name: _ratio(ours, other) for name, other in against.items()}
    return made


def fastest(cell: Mapping[str, Mapping[str, Any]], prefix: str) -> Mapping[str, Any] | None:
    """The row with the highest rps among the systems whose name starts so."""
    return max((row for name, row in cell.items() if name.startswith(prefix)), key=lambda row: row["rps"], default=None)


def kind(system: str) -> str:
    """ours, raw, stock or peer."""
    return {"slotwise": "ours", "raw": "raw", "stock": "stock"}.get(system.split("-")[0], "peer")


def _ratio(ours: Mapping[str, Any], other: Mapping[str, Any] | None) -> float | None:
    if other is None:
        return None
    return round(statistics.median(a / max(b, 1e-3) for a, b in zip(ours["rounds"], other["rounds"], strict=True)), 2)


COLOURS = {"ours": "#c2571a", "raw": "#9a9a9a", "stock": "#3b6ea5", "peer": "#7fa3c7"}


def draw(table: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """One panel a workload and number of clients, one bar a system, a dot a round."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cells = list(dict.fromkeys((row["workload"], row["concurrency"]) for row in table))
    most = max(sum((row["workload"], row["concurrency"]) == cell for row in table) for cell in cells)
    figure, panels = pyplot.subplots(1, len(cells), figsize=(4.4 * len(cells), 1.2 + 0.42 * most), squeeze=False)
    for panel, cell in zip(panels[0], cells, strict=True):
        shown = sorted((row for row in table if (row["workload"], row["concurrency"]) == cell), key=lambda row: row["rps"])
        for i, row in enumerate(shown):
            panel.barh(i, row["rps"], color=COLOURS[kind(row["system"])], height=0.65)
            panel.plot(row["rounds"], [i] * len(row["rounds"]), ".", color="black", markersize=3)
            panel.text(row["rps"], i, f" {row['rps']:.1f} ", va="center", fontsize=8, ha="left")
        panel.set_yticks(range(len(shown)), [row["system"] for row in shown], fontsize=8)
        panel.set_title(f"{cell[0]}, {cell[1]} clients", fontsize=9, loc="left")
        panel.margins(x=0.18)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xlabel("pictures a second", fontsize=8)
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
