"""What was to be reached, beside what was: ratios of one interleaved run each, and the yes or no that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from comparison.parts import DEFAULT, TUNED
from measuring.rounds import Row, by_cell, ratio

from pages.tables import number, table, with_spread

Figures = Mapping[str, Any]


class Target(NamedTuple):
    """At least so much of another system's answers, in one cell of one part of the comparison. raw: what shows the limit."""

    work: str
    part: str
    cell: tuple[str, int]
    ours: str
    other: str
    at_least: float
    raw: str = ""


def of_picture(part: str, precision: str, cell: tuple[str, int], raw: float, stock: float) -> list[Target]:
    """A picture against the loop without a server in that precision, and against TorchServe's own handler.

    bf16 is what the default profile takes where the processor has it.
    """
    amx = ", AMX" if part == "vision-amx" else ""
    work, raw_loop = f"{cell[0]}, {cell[1]} clients, {precision}{amx}", f"raw-openvino-{precision}"
    ours = DEFAULT if precision == "bf16" else f"slotwise-openvino-{precision}"
    to_raw = Target(work, part, cell, ours, raw_loop, raw)
    return [to_raw, Target(work, part, cell, ours, "stock", stock, raw_loop)]


AIMS = {  # by processor: precision, of the raw loop, of stock
    "vision-amx": (("bf16", 0.92, 4), ("int8", 0.85, 6)),
    "vision": (("fp32", 0.92, 1.9), ("int8", 0.88, 3.5)),
}
TARGETS = [
    *(
        target
        for part, aims in AIMS.items()
        for clients in (8, 32)
        for precision, raw, stock in aims
        for target in of_picture(part, precision, ("720", clients), raw, stock)
    ),
    *(
        target
        for part, precisions in (("vision-amx", ("bf16", "int8")), ("vision", ("fp32", "bf16", "int8")))
        for precision in precisions
        for target in of_picture(part, precision, ("12M", 8), 0.85, 7)
    ),
    Target("MNIST, 64 clients, tuned for them", "tensors", ("tensor", 64), TUNED[64], "mosec", 0.9),
    Target("MNIST, 8 clients, tuned for them", "tensors", ("tensor", 8), TUNED[8], "fastapi", 0.75),
]


def targets(figures: Figures) -> str:
    """Every target that was measured here."""
    lines: list[list[Any]] = []
    for target in TARGETS:
        cell = by_cell(figures[target.part]["rows"]).get(target.cell, {})
        if target.ours not in cell or target.other not in cell:
            continue
        other = cell[target.other]["rounds"]
        reached = ratio(cell[target.ours]["rounds"], other)
        holds = "yes" if reached and reached.median >= target.at_least else "no"
        limit = _left(cell[target.ours]) if target.other.startswith("raw") else None
        if target.raw in cell:
            limit = with_spread(ratio(cell[target.raw]["rounds"], other))
        lines.append([target.work, target.other, target.at_least, with_spread(reached), holds, limit])
    return table(["work", "to", "at least", "reached", "", "the limit"], lines)


def _left(row: Row) -> str | None:
    """The share of the cores that the front and the client leave to the workers."""
    return number(1 - row["shares"]["front"] - row["shares"]["client"]) if "shares" in row else None


def losses(figures: Figures) -> str:
    """Of each answer of the raw loop: what a server answers of it, and who has the processor's time of the rest."""
    lines: list[list[Any]] = []
    for target in TARGETS:
        cell = by_cell(figures[target.part]["rows"]).get(target.cell, {})
        if target.other in cell and target.other.startswith("raw") and "shares" in cell.get(target.ours, {}):
            ours, raw = cell[target.ours], cell[target.other]
            reached = ratio(ours["rounds"], raw["rounds"])
            assert reached is not None
            of_raw = raw["shares"]["workers"]
            front, client = (ours["shares"][who] / of_raw for who in ("front", "client"))
            waiting = (of_raw - sum(ours["shares"].values())) / of_raw
            parts = (reached.median, front, client, waiting, 1 - reached.median - front - client - waiting)
            lines.append([target.work, *(f"{round(100 * part)}%" for part in parts)])
    return table(["work", "answered", "front (Java)", "client", "nobody", "workers take longer"], lines)


TABLES: dict[str, Callable[[Figures], str]] = {
    "vision+vision-amx+tensors.targets": targets,
    "vision+vision-amx.losses": losses,
}
