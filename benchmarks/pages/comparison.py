"""The tables of benchmarks/compare.py's parts: speed, ratios, settings, and what bad requests cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.comparison.parts import ON_TRITON
from benchmarks.comparison.parts import PARTS as MEASURED
from benchmarks.comparison.results import against, fastest, kind
from benchmarks.measuring.rounds import Ratio, Row, by_cell, ratio
from benchmarks.measuring.study import CLIENTS, PUBLISHED
from benchmarks.pages.tables import each, number, table, with_spread

Figures = Mapping[str, Any]
OURS = "slotwise-openvino-fp32"
PARTS = (*MEASURED, "vision-amx")
TEXTS = {
    "natural": "natural code",
    "decoder": "our decoder, eager PyTorch",
    "inference": "its own decoder",
    "engine": "our decoder",
}


def ratios(part: str, system: str = "") -> Callable[[Figures], str]:
    """The ratios of one of our systems; "" for the fastest."""

    def render(figures: Figures) -> str:
        lines = []
        for (workload, clients), cell in by_cell(figures[part]["rows"]).items():
            ours = cell.get(system) if system else fastest(cell, "ours")
            if ours is not None:
                lines.append([workload, clients, *map(with_spread, against(cell, ours).values())])
        return table(["picture", "clients", "to stock", "to the fastest peer", "to the raw loop on the same engine"], lines)

    return render


def speeds(part: str) -> Callable[[Figures], str]:
    """Every system, the fastest first in each cell."""

    def render(figures: Figures) -> str:
        lines: list[list[Any]] = []
        for (workload, clients), cell in by_cell(figures[part]["rows"]).items():
            for row in sorted(cell.values(), key=lambda row: -row["rps"]):
                numbers = [f"{row['rps']:.1f}", each(row["rounds"]), row["p50_ms"], row["p99_ms"]]
                lines.append([workload, clients, row["system"], *numbers])
        return table(["body", "clients", "system", "a second", "rounds", "p50 ms", "p99 ms"], lines)

    return render


def settings(part: str) -> Callable[[Figures], str]:
    """What every system ran with, and which are left out."""

    def render(figures: Figures) -> str:
        lines = []
        for name, given in figures[part]["settings"].items():
            code = TEXTS[given["form"]] + (f", {given['engine']}" if "engine" in given else "")
            keys = ("processes", "threads", "batch_size", "delay_ms", "log_level")
            version = ", ".join(given["packages"][:1])
            lines.append([name, *(given[key] for key in keys), code, given["front"], version])
        columns = ["system", "processes", "threads each", "batch", "delay ms", "log level", "code", "beside them", "version"]
        left_out = [f"* {name} is left out: {why}" for name, why in figures[part]["left_out"].items()]
        return "\n".join([table(columns, lines), *(["", *left_out] if left_out else [])])

    return render


def poison(part: str) -> Callable[[Figures], str]:
    """What bad requests cost the others."""

    def render(figures: Figures) -> str:
        lines = []
        for name, counts in figures[part]["poison"].items():
            if name == "slotwise":
                continue
            statuses = counts["statuses"].items()
            got = ", ".join(f"{count} x {'none' if status == '0' else status}" for status, count in statuses)
            lines.append([name, *(counts[key] for key in ("innocent", "innocent_lost", "bad", "bad_refused")), got])
        return table(["system", "innocent", "lost", "bad", "refused with 4xx", "statuses of the bad"], lines)

    return render


def shares(part: str) -> Callable[[Figures], str]:
    """Who had the processor while one of our systems or the raw loop was measured, with what that gave."""

    def render(figures: Figures) -> str:
        lines = []
        for (workload, clients), cell in by_cell(figures[part]["rows"]).items():
            for name, row in cell.items():
                if kind(name) in ("ours", "raw") and "shares" in row:
                    given = [row["shares"][who] for who in ("front", "workers", "client")]
                    lines.append([workload, clients, name, *(f"{share:.0%}" for share in (*given, max(0.0, 1 - sum(given))))])
        return table(["body", "clients", "system", "front (Java)", "workers", "client", "nobody"], lines)

    return render


def machines(figures: Figures) -> str:
    """Every system on both machines: answers a second, and to stock on the same one."""
    sides = [by_cell(figures[part]["rows"]) for part in ("vision", "vision-amx")]
    lines: list[list[Any]] = []
    for cell, first in sides[0].items():
        for name in sorted(first, key=lambda name: -first[name]["rps"]):
            rows = [side.get(cell, {}) for side in sides]
            shown = [[number(row[name]["rps"]), _to(row, name, "stock")] if name in row else [None, None] for row in rows]
            lines.append([*cell, name, *itertools.chain(*shown)])
    where = [_processor(figures[part]["machine"]) for part in ("vision", "vision-amx")]
    return table(["body", "clients", "system", *(column for text in where for column in (text, "to stock there"))], lines)


def _processor(machine: Figures) -> str:
    with_ = "AMX" if machine["amx"] else "no AMX"
    return f"a second, {machine['cpu'].replace('(R)', '')}, {with_}"


def same_engine(part: str) -> Callable[[Figures], str]:
    """Slotwise on TorchServe, and on Triton where that was measured, to each server that has its engine."""

    def render(figures: Figures) -> str:
        cells = by_cell(figures[part]["rows"])
        systems = next(iter(cells.values()))
        both = {OURS: "on TorchServe", ON_TRITON["fp32"]: "on Triton"}
        ours = {ours: where for ours, where in both.items() if ours in systems}
        columns = [f"{where}, {clients} clients" for where in ours.values() for _, clients in cells]
        names = [name for name in systems if name not in ours]
        lines = [[name, *(_to(cell, one, name) for one in ours for cell in cells.values())] for name in names]
        return table(["Slotwise to", *columns], lines)

    return render


def of_raw(part: str) -> Callable[[Figures], str]:
    """What each server answers to what a loop without any does with the same decoder and engine."""

    def render(figures: Figures) -> str:
        cells = by_cell(figures[part]["rows"])
        raw = next(name for cell in cells.values() for name in cell if kind(name) == "raw")
        names = dict.fromkeys(name for cell in cells.values() for name in cell if name != raw)
        lines = [[name, *(_to(cell, name, raw) for cell in cells.values())] for name in names]
        return table(["to the raw loop", *(f"{clients} clients" for _, clients in cells)], lines)

    return render


def steps(figures: Figures) -> str:
    """What the decoder, the engine and the server give, each to the step before."""
    lines = []
    for (_, clients), cell in by_cell(figures["ablation"]["rows"]).items():
        for server in dict.fromkeys(name.partition("-")[0] for name in cell if name != OURS):
            names = [*(f"{server}-{form}" for form in ("natural", "decoder", "engine")), OURS]
            if not all(name in cell for name in names):
                continue
            gains = [_to(cell, later, before) for before, later in itertools.pairwise(names)]
            lines.append([clients, server, number(cell[names[0]]["rps"]), *gains, _to(cell, OURS, names[0])])
    columns = ["clients", "server", "natural code, a second", "+ our decoder", "+ our engine", "Slotwise instead", "in all"]
    return table(columns, lines)


def by_batch(figures: Figures) -> str:
    """ResNet-152 by batch size beside the published figures."""
    cells = by_cell(figures["resnet152"]["rows"])
    lines: list[list[Any]] = []
    for size in PUBLISHED:
        published = [PUBLISHED[size][CLIENTS.index(clients)] for _, clients in cells]
        names = [f"{system}, batch {size}" for system in ("stock", OURS)]
        ours = [f"{number(cell[name]['rps'])} ({each(cell[name]['rounds'])})" for name in names for cell in cells.values()]
        lines.append([size, *published, *ours])
    who = ("published", "stock, fp32", "Slotwise, fp32")
    return table(["batch size", *(f"{name}: {clients} clients" for name in who for _, clients in cells)], lines)


def _to(cell: Mapping[str, Row], ours: str, other: str) -> str | None:
    if ours not in cell or other not in cell:
        return None
    rounds: Ratio | None = ratio(cell[ours]["rounds"], cell[other]["rounds"])
    return with_spread(rounds)


TABLES: dict[str, Callable[[Figures], str]] = {
    **{f"{part}.rows": speeds(part) for part in PARTS},
    **{f"{part}.settings": settings(part) for part in PARTS},
    **{f"{part}.poison": poison(part) for part in PARTS},
    **{f"{part}.shares": shares(part) for part in ("vision", "vision-amx")},
    "vision+vision-amx.machines": machines,
    **{f"{part}.ratios": ratios(part) for part in ("vision", "vision-amx", "lite0")},
    **{f"{part}.ratios.fp32": ratios(part, OURS) for part in ("vision", "lite0")},
    **{f"{part}.same": same_engine(part) for part in ("engines", "inference")},
    "engines-int8.of_raw": of_raw("engines-int8"),
    "ablation.steps": steps,
    "resnet152.by_batch": by_batch,
}
