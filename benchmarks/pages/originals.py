"""The tables of docs/originals.md: what each of the five published systems gained by a setting, and what it gains here.

A ratio of ratios is our gain for each of theirs: 1 where a setting does here what it did there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.comparison.parts import PUBLISHED_LAYOUTS
from benchmarks.measuring.on_triton import BEFORE, CLIENTS, DELAYS_US, INSTANCES, TUNED
from benchmarks.measuring.rounds import Ratio, Row, by_cell, ratio
from benchmarks.measuring.study import CLIENTS as STUDY_CLIENTS
from benchmarks.measuring.study import PUBLISHED
from benchmarks.pages.tables import number, table, with_spread

Figures = Mapping[str, Any]
NOT_MEASURED = "not measured yet"
ANTS = {"64x1": (48.49, 973, 1955), "32x2": (76.84, 678, 922)}  # published: a second, p50 ms, p99 ms
ANTS_CEILING = 277  # published: pictures a second at most
TRITON = {BEFORE: {1: 709, 8: 2109}, TUNED: {1: 656, 8: 2719}}  # published, by clients: before and after tuning
CAPTIONS_GAIN, CAPTIONS_PROCESSES = 1.5, 0.8  # published: 64 to one by one; "more than 20" percent lost by a second process
CAPTIONS_BATCH_GAIN = 64 * 625 / 10_000  # published: 64 pictures in 10 s, one in 0.625
CAPTIONS_PARTS_MS = (10, 625, 0.2)  # published: encoder, inference (GPU) and decoder of one picture


class Published(NamedTuple):
    """What a case of the stress test gave there: the share that was answered, and the average seconds."""

    answered: float
    mean_s: float


STRESS = {  # by records, requests a second
    (1, 2): Published(1.0, 0.41),
    (16, 2): Published(1.0, 0.62),
    (1, 10): Published(1.0, 0.42),
    (16, 10): Published(0.43, 10.4),
    (1, 100): Published(0.36, 3.27),
    (16, 100): Published(0.36, 13.69),
}


def of_ratios(ours: Ratio | float | None, theirs: float | None) -> str | None:
    """Our gain for each of theirs."""
    median = ours.median if isinstance(ours, Ratio) else ours
    return f"{median / theirs:.2f}" if median is not None and theirs else None


def ants(figures: Figures) -> str:
    """Ants and bees by batch size and workers, each to batch 64 with one worker."""
    (cell,) = by_cell(figures["ants"]["rows"]).values()
    base, lines = cell["slotwise-ei-64x1"], []
    for size, workers in PUBLISHED_LAYOUTS:
        name = f"{size}x{workers}"
        theirs, ours = ANTS.get(name), cell.get(f"slotwise-ei-{name}")
        gain = theirs and theirs[0] / ANTS["64x1"][0]
        line = [size, workers, *(theirs or ["", "", ""]), gain and f"{gain:.2f}"]
        if ours is None:
            lines.append([*line, NOT_MEASURED, *[None] * 4])
            continue
        found = ratio(ours["rounds"], base["rounds"])
        lines.append([*line, f"{ours['rps']:.1f}", ours["p50_ms"], ours["p99_ms"], with_spread(found), of_ratios(found, gain)])
    columns = ["batch", "workers", "published: a second", "p50 ms", "p99 ms", "to 64 x 1", "ours: a second", "p50 ms", "p99 ms"]
    return table([*columns, "to 64 x 1", "ratio of ratios"], lines)


def ceiling(figures: Figures) -> str:
    """The pictures a second that an accelerator of 1 TFLOP/s computes at most, published and as `roofline` says."""
    lines = [[each["n"], ANTS_CEILING, f"{each['most_a_second']:.1f}"] for each in figures["roofline-ants"]["batches"]]
    return table(["batch", "published: at most a second", "`slotwise roofline`: at most a second"], lines)


def resnet152(figures: Figures) -> str:
    """What batches of 8 and 16 give for each answer of batches of one."""
    lines = []
    for (_, clients), cell in by_cell(figures["resnet152"]["rows"]).items():
        at = STUDY_CLIENTS.index(clients)
        for size in (8, 16):
            theirs = PUBLISHED[size][at] / PUBLISHED[1][at]
            line: list[Any] = [clients, size, f"{theirs:.2f}"]
            for system in ("stock", "slotwise-openvino-fp32"):
                names = (f"{system}, batch {size}", f"{system}, batch 1")
                found = ratio(*(cell[name]["rounds"] for name in names))
                line += [with_spread(found), of_ratios(found, theirs)]
            lines.append(line)
    columns = ["clients", "batch", "published: to batch 1", "stock", "ratio of ratios", "Slotwise", "ratio of ratios"]
    return table(columns, lines)


def sweep(figures: Figures) -> str:
    """The study's sweep on ResNet-152 itself, 1 and 8 workers, with the delay's curve."""
    study = figures["study152"]
    clients = study["clients"]
    at = [STUDY_CLIENTS.index(n) for n in clients]
    lines: list[list[Any]] = [["published, 8 workers", n, *(row[i] for i in at)] for n, row in PUBLISHED.items()]
    for workers, curves in study["curves"].items():
        for size, row in curves["by_clients"].items():
            lines.append([f"ours, {workers} worker{'s' if workers != '1' else ''}", size, *map(number, row)])
    return table(["", "batch size", *(f"{n} clients" for n in clients)], lines)


def sweep_by_delay(figures: Figures) -> str:
    """The same over the delay, each to no delay."""
    from benchmarks.measuring.study import PUBLISHED_BY_DELAY

    study = figures["study152"]
    rows = {"published, 8 workers": PUBLISHED_BY_DELAY}
    rows |= {
        f"ours, {workers} workers".replace("1 workers", "1 worker"): c["by_delay"] for workers, c in study["curves"].items()
    }
    lines = [[name, *(f"{number(value)} ({value / row[0]:.2f})" for value in row)] for name, row in rows.items()]
    return table(["a second (to no delay)", *(f"{ms} ms" for ms in study["delays"])], lines)


def triton(figures: Figures) -> str:
    """MNIST before and after tuning, at 1 to 8 clients."""
    cells = by_cell(figures["mnist_triton"]["rows"])
    lines = []
    for clients in CLIENTS:
        cell = cells["mnist", clients]
        theirs = [TRITON[name].get(clients) for name in (BEFORE, TUNED)]
        gain = theirs[1] / theirs[0] if theirs[0] and theirs[1] else None
        found = ratio(cell[TUNED]["rounds"], cell[BEFORE]["rounds"])
        ours = [number(cell[name]["rps"]) for name in (BEFORE, TUNED)]
        lines.append([clients, *theirs, gain and f"{gain:.2f}", *ours, with_spread(found), of_ratios(found, gain)])
    columns = ["clients", "published: before", "tuned", "tuned to before", f"ours: {BEFORE}", TUNED, "tuned to before"]
    return table([*columns, "ratio of ratios"], lines)


def triton_grid(figures: Figures) -> str:
    """Answers a second at 1 and at 8 clients by instances and delay."""
    cells = by_cell(figures["mnist_triton"]["grid"])

    def shown(instances: int, delay_us: int) -> str | None:
        found = [cells.get((str(instances), clients), {}).get(str(delay_us)) for clients in (1, 8)]
        return " / ".join(number(row["rps"]) for row in found if row) or None

    lines = [[instances, *(shown(instances, delay_us) for delay_us in DELAYS_US)] for instances in INSTANCES]
    return table(["instances", *(f"{delay_us} us" for delay_us in DELAYS_US)], lines)


def captions_gain(figures: Figures) -> str:
    """What the largest batches give for each answer one by one: published, and the demonstration model's."""
    (cell,) = by_cell(figures["captions"]["rows"]).values()
    single, *_, largest = cell.values()
    found = ratio(largest["rounds"], single["rounds"])
    line = ["64 to one by one, 64 clients", CAPTIONS_GAIN, with_spread(found), of_ratios(found, CAPTIONS_GAIN)]
    return table(["", "published", "ours, 0.2 million parameters", "ratio of ratios"], [line])


def captions_parts(figures: Figures) -> str:
    """A batch's parts at GIT base's size, and what a picture in it costs for each one alone."""
    batches = figures["captions_large"]["batches"]
    alone = batches[0]["batch_ms"]
    lines: list[list[Any]] = [["published, GPU", 1, *map(number, CAPTIONS_PARTS_MS), number(sum(CAPTIONS_PARTS_MS)), "1", None]]
    lines.append(["published, GPU", 64, None, None, None, "10000", f"{CAPTIONS_BATCH_GAIN:.2f}", None])
    for each in batches:
        parts = [number(each[key]) for key in ("decode_ms", "model_ms", "encode_ms", "batch_ms")]
        gain = alone / each["item_ms"]
        of_theirs = of_ratios(gain, CAPTIONS_BATCH_GAIN) if each["n"] == 64 else None
        lines.append(["ours, CPU", each["n"], *parts, f"{gain:.2f}", of_theirs])
    columns = ["", "batch", "encoder ms", "inference ms", "decoder ms", "all ms", "pictures for each one by one"]
    return table([*columns, "ratio of ratios"], lines)


def captions_processes(figures: Figures) -> str:
    """Two processes for each answer of one."""
    lines = []
    for (_, clients), cell in by_cell(figures["captions_large"]["rows"]).items():
        one, two = (cell[name] for name in ("one process", "two processes"))
        found = ratio(two["rounds"], one["rounds"])
        theirs = f"less than {CAPTIONS_PROCESSES}"
        lines.append(
            [clients, number(one["rps"]), number(two["rps"]), theirs, with_spread(found), of_ratios(found, CAPTIONS_PROCESSES)]
        )
    columns = ["clients", "one process, a second", "two processes", "published: two to one", "ours", "ratio of ratios"]
    return table(columns, lines)


def captions_times(figures: Figures) -> str:
    """Within how many ms so many of the answers came, and the picture of it."""
    times = figures["captions_large"]["times"]
    shares = list(times[0]["within_ms"])
    lines = [[each["system"], each["clients"], *map(number, each["within_ms"].values())] for each in times]
    picture = "![Sorted response times at 1, 8 and 16 clients](figures/captions_large.svg)"
    return table(["", "clients", *(f"{share}%" for share in shares)], lines) + f"\n\n{picture}"


def translation(figures: Figures) -> str:
    """Each case of the stress test to one record at two a second: the average time, and the share that was answered."""
    rows: Sequence[Row] = figures["translation"]["rows"]
    even = any(row.get("even") for row in rows)
    found = {(row["records"], row["rate"]): row for row in rows if row["requests"] == 100 and bool(row.get("even")) == even}
    base, lines = found.get((1, 2)), []
    for case, published in STRESS.items():
        gain = published.mean_s / STRESS[1, 2].mean_s
        theirs = [f"{published.answered:.0%}", f"{published.mean_s:.2f}", f"{gain:.2f}"]
        row = found.get(case)
        if row is None:
            lines.append([*case, *theirs, NOT_MEASURED, *[None] * 4])
            continue
        arrivals = "even" if row.get("even") else "Poisson's"
        ours = [arrivals, f"{row['answered'] / row['requests']:.0%}", f"{row['mean_ms'] / 1000:.2f}"]
        times = row["mean_ms"] / base["mean_ms"] if base else None
        lines.append([*case, *theirs, *ours, times and f"{times:.2f}", of_ratios(times, gain)])
    columns = [
        "records",
        "a second",
        "published: answered",
        "average s",
        "to 1 record at 2 a second",
        "ours: arrivals",
        "answered",
    ]
    return table([*columns, "average s", "to 1 record at 2 a second", "ratio of ratios"], lines)


def translation_stress(figures: Figures) -> str:
    """What became of the requests of each case, beside the original's."""

    def counted(statuses: Mapping[str, int], of: int) -> str:
        return ", ".join(f"{count / of:.0%} {status}" for status, count in statuses.items())

    lines = []
    for row in figures["translation"]["rows"]:
        published = STRESS.get((row["records"], row["rate"])) if row["requests"] == 100 else None
        theirs = published and f"{published.answered:.0%} answered, {published.mean_s:g} s on average"
        answered = f"{row['answered'] / row['requests']:.0%}"
        refused = counted(row["refused"], row["requests"]) or "none"
        lost = counted(row["lost"], row["requests"]) or "0"
        keys = ("mean_ms", "min_ms", "p50_ms", "p99_ms")
        waits = [f"{row[key] / 1000:.2f}" if key in row else None for key in keys]
        arrivals = "even" if row.get("even") else "Poisson's"
        load = [row["rate"], arrivals, row["records"], row["requests"]]
        lines.append([*load, theirs, answered, refused, lost, *waits, row["mean_batch"]])
    columns = ["a second", "arrivals", "records each", "requests", "theirs", "ours: answered", "refused", "lost"]
    return table([*columns, "average s", "least s", "p50 s", "p99 s", "mean batch"], lines)


def translation_large(figures: Figures) -> str:
    """M2M100 of 418 million with random weights: to READY, memory, and requests a second."""
    lines = []
    for each in figures["translation_large"]["engines"]:
        rows = by_cell(each["rows"])
        start = [f"{each['engine']} {each['precision']}", number(each["ready_s"]), each["ready_mib"], each["after_mib"]]
        for (_, clients), cell in rows.items():
            lines.append([*start, clients, *(number(row["rps"]) for row in cell.values())])
    columns = ["engine", "s to READY", "MiB then", "MiB afterwards", "clients"]
    records = [f"{n} record{'s' if n > 1 else ''}, a second" for n in (1, 2, 4, 8, 16)]
    return table([*columns, *records], lines)


TABLES: dict[str, Callable[[Figures], str]] = {
    "ants.published": ants,
    "roofline-ants.most": ceiling,
    "resnet152.gains": resnet152,
    "study152.by_clients": sweep,
    "study152.by_delay": sweep_by_delay,
    "mnist_triton.clients": triton,
    "mnist_triton.grid": triton_grid,
    "captions.gain": captions_gain,
    "captions_large.parts": captions_parts,
    "captions_large.processes": captions_processes,
    "captions_large.times": captions_times,
    "translation.stress": translation_stress,
    "translation.gains": translation,
    "translation_large.rows": translation_large,
}
