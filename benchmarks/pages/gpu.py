"""The tables of docs/measured-pictures.md that were measured on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.pages.tables import number, table

Figures = Mapping[str, Any]


def apart(figures: Figures) -> str:
    """What a start finds of each engine, and whether a row's answer had another bit beside 1 to 16 mates."""

    def line(row: Mapping[str, Any]) -> list[Any]:
        between = row["between_shapes"]["absolute"]
        differing = f"{row['differing']} of {row['answers']}" if row["answers"] else None
        moved = f"{between:.1e}" if between else "0"
        return [row["model"], row["engine"].split()[1], row["commit"][:8], number(row["seconds"]), moved, differing]

    columns = ["model", "precision", "commit", "seconds of the proof", "another batch size moves a number by"]
    return table([*columns, "differ in a bit"], map(line, figures["gpu"]["rows"]))


def batches(figures: Figures) -> str:
    """A batch of pictures in the worker, before and after."""
    lines = [
        [row["n"], row["commit"][:8], *(number(row[key]) for key in ("batch_ms", "decode_ms", "model_ms"))]
        for row in figures["gpu"]["offline"]
    ]
    return table(["pictures a batch", "commit", "batch ms", "decoding", "model"], lines)


TABLES: dict[str, Callable[[Figures], str]] = {"gpu.apart": apart, "gpu.batches": batches}
