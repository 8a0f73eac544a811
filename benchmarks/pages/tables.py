"""The tables: each a function of all figures that returns Markdown. A name begins with what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.measuring.rounds import Ratio, Row, by_cell, median_interval, ratio
from benchmarks.pages.stale import CODE, HISTORY

Figures = Mapping[str, Any]


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; None is an empty cell."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join("" if cell is None else str(cell) for cell in line) + " |" for line in lines)


def number(value: float) -> str:
    """As people read it: 2132, 30.7, 0.52."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def with_spread(rounds: Ratio | None) -> str | None:
    """The median of a ratio, and its lowest and highest round."""
    return rounds and f"{number(rounds.median)} ({number(rounds.low)} to {number(rounds.high)})"


def each(rounds: Iterable[float] | None) -> str | None:
    """The rounds' answers a second."""
    return " ".join(f"{value:.0f}" for value in rounds) if rounds else None


def command(name: str) -> Callable[[Figures], str]:
    """What measured it, as it is called today."""
    old = {"scripts/compare.py": "-m benchmarks.compare", "scripts/figures.py": "-m benchmarks.figures"}

    def line(figures: Figures) -> str:
        asked = str(figures[name]["command"])
        for before, now in old.items():
            asked = asked.replace(before, now)
        return f"    {asked}"

    return line


def text_rows(figures: Figures) -> str:
    """One request a batch against the profile's batches."""

    def line(row: Row) -> list[Any]:
        numbers = [number(row["rps"]), each(row["rounds"]), row["mean_batch"], number(row["p99_ms"])]
        return [row["workload"], row["system"], *numbers]

    columns = ["model", "setting", "answers a second", "rounds", "mean batch", "p99 ms"]
    return table(columns, map(line, figures["text"]["rows"]))


def captions_rows(figures: Figures) -> str:
    """Every batch size, and what it gives for each answer of batch size 1."""
    rows = figures["captions"]["rows"]
    lines = []
    for row in rows:
        to_single = None if row is rows[0] else with_spread(ratio(row["rounds"], rows[0]["rounds"]))
        numbers = [number(row["rps"]), each(row["rounds"]), row["mean_batch"], number(row["p99_ms"])]
        lines.append([row["system"], *numbers, to_single, row["lost"]])
    return table(["setting", "answers a second", "rounds", "mean batch", "p99 ms", "to batch 1", "lost"], lines)


def gateway_rows(figures: Figures) -> str:
    """Straight to the server, through the gateway and through HAProxy: answers, and the processor time of all processes."""
    lines: list[list[Any]] = []
    for (precision, clients), cell in by_cell(figures["gateway"]["rows"]).items():
        direct = cell["direct"]
        for name, row in cell.items():
            of_direct = None if row is direct else _with_interval(row["rounds"], direct["rounds"])
            cost = None if row is direct else _with_interval(row["cpu_ms"], direct["cpu_ms"])
            waits = [number(row["p50_ms"]), number(row["p99_ms"])]
            numbers = [number(row["rps"]), of_direct, *waits, number(median(row["cpu_ms"])), cost]
            lines.append([precision, clients, name, *numbers])
    columns = ["precision", "clients", "", "a second", "to direct, by round", "p50 ms", "p99 ms"]
    return table([*columns, "processor ms an answer", "to direct, by round"], lines)


def records_rows(figures: Figures) -> str:
    """64 records in one request, and as 64 requests."""
    lines = []
    for row in figures["records"]["rows"]:
        compared = None if row["system"] == "64 requests" else with_spread(Ratio(**row["to_singles"]))
        spent = [number(row["cpu_ms"][name]) for name in ("front", "server")]
        same = f"{row['same']['labels']}, {row['same']['probability']:g}"
        lines.append([row["workload"], row["system"], number(row["p50_ms"]), compared, *spent, same, row["lost"]])
    columns = ["model", "as", "ms until all are answered", "to 64 requests", "processor ms: gateway", "server"]
    return table([*columns, "same labels, probabilities differ at most by", "lost"], lines)


def hedging_rows(figures: Figures) -> str:
    """A stand-in that answers everything, and one that never answers one request in 50."""
    copies = figures["hedging"]["copies_per_request"]
    lines = []
    for row in figures["hedging"]["rows"]:
        sent = sorted(copies[row["system"]][-len(row["rounds"]) :])
        lines.append([row["system"], row["rps"], row["p50_ms"], row["p99_ms"], row["lost"], f"{sent[0]} to {sent[-1]}"])
    return table(["", "a second", "p50 ms", "p99 ms", "lost", "copies a request"], lines)


def rollouts_rows(figures: Figures) -> str:
    """How often simulated roll-outs were called worse, and after how many requests."""
    lines = []
    for row in figures["rollouts"]["rows"]:
        called = f"{row['called_worse']} of {row['runs']}"
        after = row["median_requests"] and [f"{row['median_requests']:,}", f"{row['median_s']:.0f}"]
        lines.append([row["name"], number(row["rate"]), called, *(after or [None, None])])
    columns = ["the new archive is", "requests a second", "called worse", "then after requests (median)", "after s"]
    return table(columns, lines)


def own_host_rows(figures: Figures) -> str:
    """Our own host and TorchServe, alone and behind their gateways, beside TorchServe in the same rounds."""
    return _beside_torchserve(figures["own_host"]["rows"])


def one_word_rows(figures: Figures) -> str:
    """A deployment of TorchServe, and the same one with a word changed."""
    return _beside_torchserve(figures["one_word"]["rows"])


def _beside_torchserve(rows: Iterable[Mapping[str, Any]]) -> str:
    lines = []
    for row in rows:
        compared = (
            with_spread(Ratio(**row["to_torchserve"])) if row["to_torchserve"] and row["system"] != "torchserve" else None
        )
        waits = [number(row["p50_ms"]), number(row["p99_ms"])]
        lines.append(
            [
                row["workload"].partition(",")[0],
                row["concurrency"],
                row["system"],
                number(row["rps"]),
                compared,
                *waits,
                row["lost"],
            ]
        )
    return table(["model", "clients", "system", "a second", "to TorchServe", "p50 ms", "p99 ms", "lost"], lines)


def hosts_rows(figures: Figures) -> str:
    """The same archives on every host: answers a second, and what 99% of the clients waited at most."""
    cells = by_cell(figures["hosts"]["rows"])
    hosts = list(next(iter(cells.values())))
    lines = []
    for (workload, clients), cell in cells.items():
        answers = [number(cell[host]["rps"]) + (f", {cell[host]['lost']} lost" if cell[host]["lost"] else "") for host in hosts]
        waits = [None if cell[host]["p99_ms"] is None else number(cell[host]["p99_ms"]) for host in hosts]
        lines.append([workload.partition(",")[0], clients, *answers, *waits])
    return table(["model", "clients", *hosts, *(f"p99 ms: {host}" for host in hosts)], lines)


def hostile_rows(figures: Figures) -> str:
    """A picture model's example beside pictures that are dear to decode."""
    lines = []
    for row in figures["hostile"]["hostile"]:
        others = ", ".join(f"{count} x {status}" for status, count in row["statuses"].items())
        seconds = " ".join(f"{value:.2g}" for value in row["seconds"])
        lines.append([row["model"], row["others"], row["status"], seconds, others, "yes" if row["same_workers"] else "no"])
    return table(["model", "beside", "the example", "its seconds, by round", "the others", "no worker died"], lines)


def start_rows(figures: Figures) -> str:
    """From `slotwise serve` to the first answer, before and now."""
    rows = {row["system"]: row for row in figures["start"]["rows"]}
    parts = {
        "java": "seconds of Java, until the APIs listen",
        "java_cpu": "CPU seconds of Java until then",
        "worker": "seconds of the worker: Python and the server's own code",
        "model": "seconds of the worker: handler, engine, warm-up",
        "rest": "seconds of all else",
        "all": "seconds until the first answer",
        "memory_mib": "MiB of memory of the worker then",
    }

    def line(key: str, what: str) -> list[Any]:
        found = figures["start"]["ratios"][key]
        return [what, *(f"{rows[system][key]:.2f}" for system in ("before", "now")), found and with_spread(Ratio(**found))]

    return table(["", "before", "now", "ratio"], [line(key, what) for key, what in parts.items()])


def accuracy_rows(figures: Figures) -> str:
    """EfficientNet-Lite0 by engine and precision: agreement with eager fp32, speed."""
    lines = []
    for row in figures["accuracy"]["rows"]:
        sure = f"{row['sure_top1_agreement']:.1%} of {row['sure']}"
        by = [f"{row['top1_agreement']:.1%}", sure, f"{row['largest_difference']:.2f}"]
        lines.append([row["system"], *by, number(median(row["rounds"])), number(median(row["latency_ms"]))])
    columns = ["engine", f"same label, {figures['accuracy']['cuts']} cuts", "where fp32 is sure", "a probability moved by"]
    return table([*columns, "pictures a second, batch 8", "ms, one picture"], lines)


def accuracy_labels(figures: Figures) -> str:
    """The label of each photo, by engine and precision."""
    accuracy = figures["accuracy"]
    names = {photo: photo + (" *" if photo in accuracy["calibrating"] else "") for photo in accuracy["rows"][0]["labels"]}
    lines = [
        [shown, *(f"{label} {likely:.0%}" for label, likely in (row["labels"][photo] for row in accuracy["rows"]))]
        for photo, shown in names.items()
    ]
    return table(["photo", *(row["system"] for row in accuracy["rows"])], lines)


def worker_rows(figures: Figures) -> str:
    """What a request costs the worker, against an earlier commit's."""
    lines = []
    for row in figures["worker"]["rows"]:
        us = [median([one[who] for one in row["rounds"]]) for who in ("before", "now")]
        interval = row["interval"]
        within = f"{interval['low']:.3f} to {interval['high']:.3f}" if interval else None
        lines.append([row["model"], row["n"], *(f"{spent:.0f}" for spent in us), f"{median(row['ratios']):.3f}", within])
    return table(["model", "requests a batch", "before, us", "now, us", "now to before", "95% interval"], lines)


def worker_instructions(figures: Figures) -> str:
    """What a request costs the worker beside its model, in instructions."""
    lines = [
        [row["n"], *(f"{median(row['instructions'][who]):,.0f}" for who in ("before", "now")), f"{row['ratio']:.3f}"]
        for row in figures["worker"].get("instructions", [])
    ]
    return table(["requests a batch", "before, instructions a request", "now", "now to before"], lines)


def _with_interval(ours: Sequence[float], other: Sequence[float]) -> str | None:
    """The median of the rounds' ratios, its lowest and highest round, and the median's 95% interval."""
    if not ours or not all(other):
        return None
    interval = median_interval([a / b for a, b in zip(ours, other, strict=True)])
    within = f"; 95% {number(interval.low)} to {number(interval.high)}" if interval else ""
    return f"{with_spread(ratio(ours, other))}{within}"


def guard_rows(figures: Figures) -> str:
    """A handler that does nothing, without a guard and with one."""
    by_body: dict[str, dict[str, Any]] = {}
    for row in figures["guard"]["rows"]:
        by_body.setdefault(row["body"], {})[row["system"]] = row
    lines = []
    for body, rows in by_body.items():
        rounds = " ".join(f"{value:.0f}" for value in rows["guarded"]["rounds"])
        lines.append([body, f"{rows['bare']['median_us']:.1f}", f"{rows['guarded']['median_us']:.0f}", rounds])
    return table(["each body", "the handler alone, us a batch", "with a guard", "rounds"], lines)


def traces_rows(figures: Figures) -> str:
    """Processor time of a request without traces, and with a share of them sent to a collector."""
    lines = []
    for row in figures["traces"]["rows"]:
        without, traced = ([one[name] for one in row["rounds"]] for name in ("off", "on"))
        lines.append([row["clients"], number(median(without)), number(median(traced)), _with_interval(traced, without)])
    share = f"{figures['traces']['share']:.0%} traced"
    return table(["clients", "without traces, us of processor a request", share, f"{share} to without, by round"], lines)


def echo_rows(figures: Figures) -> str:
    """MNIST and the handlers that do less."""
    lines = []
    for (load, clients), cell in by_cell(figures["echo"]["rows"]).items():
        answers = [number(cell[name]["rps"]) for name in ("mnist", "bare_mnist", "echo", "slotwise_echo")]
        ratios = [ratio(cell["mnist"]["rounds"], cell[name]["rounds"]) for name in ("echo", "slotwise_echo", "bare_mnist")]
        lines.append([clients, load, *answers, *map(with_spread, ratios)])
    columns = ["clients", "setting", "MNIST", "the shortest handler", "bare echo", "echo with our slots"]
    return table([*columns, "MNIST to bare echo", "to ours", "to the shortest"], lines)


def sources(figures: Figures) -> str:
    """The commit, the tree of slotwise/, date and machine of every figure."""
    lines = []
    for name, figure in figures.items():
        machine = figure["machine"]
        flags = [flag for flag in ("avx2", "avx512", "amx") if machine[flag]]
        where = ", ".join([machine["cpu"], f"{machine['cores']} cores", *flags]) if machine["cpu"] else "not recorded"
        how = "typed into the page, recovered" if "recovered" in figure.get("source", "") else "as measured"
        how = "history" if name in HISTORY else how
        tree = figure.get("tree", "")[:7]
        lines.append([f"[{name}](figures/{name}.json)", figure["commit"], tree, figure["date"], where, how])
    return table(["figures", "commit", "slotwise/", "date", "machine", ""], lines)


def bits_rows(figures: Figures) -> str:
    """Every model on every engine: answers that differ in a bit at equal shapes, and how far shapes are apart."""

    def line(row: Row) -> list[Any]:
        apart = row["between_shapes"]
        if row["texts"]:
            between = "the same texts" if apart["absolute"] == 0 else "other texts"
        else:
            between = f"{apart['absolute']:.1e} ({apart['relative']:.1e})" if apart["absolute"] else "0"
        served = [row["served"], row["shared"], row["served_differing"]]
        return [row["model"], row["engine"], row["version"], row["answers"], row["differing"], *served, between]

    columns = ["model", "engine", "version", "answers", "differ in a bit", "served", "shared", "differ in a bit"]
    columns.append("between shapes at most (relative)")
    return table(columns, map(line, figures["bits"]["rows"]))


TABLES: dict[str, Callable[[Figures], str]] = {
    **{f"{name}.command": command(name) for name in CODE},
    "text.rows": text_rows,
    "captions.rows": captions_rows,
    "gateway.rows": gateway_rows,
    "records.rows": records_rows,
    "rollouts.rows": rollouts_rows,
    "hedging.rows": hedging_rows,
    "hosts.rows": hosts_rows,
    "own_host.rows": own_host_rows,
    "one_word.rows": one_word_rows,
    "hostile.rows": hostile_rows,
    "bits.rows": bits_rows,
    "start.rows": start_rows,
    "accuracy.rows": accuracy_rows,
    "accuracy.labels": accuracy_labels,
    "worker.rows": worker_rows,
    "worker.instructions": worker_instructions,
    "guard.rows": guard_rows,
    "traces.rows": traces_rows,
    "echo.rows": echo_rows,
    "all.sources": sources,
}
