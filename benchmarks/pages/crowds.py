"""The tables of a client beside a crowd, of adversaries, constant loads and a day of a host that sets itself.

On a page: `fairness.rows`, `adversaries.rows`, `loads.rows`, `instances.rows` and `day.rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.measuring.rounds import by_cell
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


def loads(figures: Figures) -> str:
    """A line a load: what the host that chooses gives, and the best of the settings that stay."""
    lines = []
    for row in figures["loads"]["rows"]:
        auto, best = row["systems"]["auto"], row["systems"][row["best"]]
        times = "{median:g} ({low:g} to {high:g})".format(**row["to_best"]) if row["to_best"] else ""
        cells = [f"{number(one['in_time_s'])}, {number(one['p99_ms'])} ms" for one in (auto, best)]
        lost = sum(one["lost"] for one in row["systems"].values())
        lines.append([row["model"], row["load"], number(row["target_ms"]), cells[0], row["best"], cells[1], times])
        lines[-1] += [_yes(row["held"]), lost]
    columns = ["model", "load", "target, ms", "`auto`: in time a second, p99", "best static setting", "its answers, p99"]
    return table([*columns, "`auto` to it", "held", "lost"], lines)


def instances(figures: Figures) -> str:
    """A line a model and batch: one worker with all cores, a worker a core, and the second to the first."""
    found = figures["instances"]
    lines = []
    for (model, batch), systems in by_cell(found["rows"]).items():
        fat, thin = systems["fat"], systems["thin"]
        times = "{median:g} ({low:g} to {high:g})".format(**thin["to_fat"])
        answers = [f"{number(one['rps'])}, {number(one['p99_ms'])} ms" for one in (fat, thin)]
        simulated = number(thin["simulated"] / fat["simulated"])
        lines.append([model, batch, *answers, times, simulated, fat["lost"] + thin["lost"]])
    shapes = [f"one worker of {found['cores']} threads: a second, p99", f"{found['cores']} of one thread"]
    return table(["model", "requests at once", *shapes, "the second to the first", "simulated", "lost"], lines)


def day(figures: Figures) -> str:
    """A line a system, and what is to hold."""
    found = figures["day"]
    lines = []
    for row in found["rows"]:
        second = f"{number(row['second_in_time'])} of {number(row['second_asked'])}"
        counts = [number(row[key]) for key in ("asked", "in_time", "simulated", "refused", "lost", "changes")]
        lines.append([row["name"], *counts, second])
    columns = ["system", "asked", "answered in time", "simulated", "refused", "lost", "changes of workers"]
    held = found["held"]
    words = {"lost": "Nothing lost", "changes": "Few changes", "simulated": "The simulator within 10%"}
    text = f"`auto` answered {found['times']:g} times as many in time as {found['best']}; "
    text += f"{found['plan']['times']:g} are wanted at least: {_yes(held['times'])}. "
    text += " ".join(f"{said}: {_yes(held[key])}." for key, said in words.items())
    return f"{table([*columns, 'the second model'], lines)}\n\n{text}"


def _yes(held: bool) -> str:
    return "yes" if held else "**no**"


TABLES: dict[str, Callable[[Figures], str]] = {
    "fairness.rows": fairness,
    "adversaries.rows": adversaries,
    "loads.rows": loads,
    "instances.rows": instances,
    "day.rows": day,
}
