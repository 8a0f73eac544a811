"""Show measurements to people: tables, CSV and figures."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.bench.load import BUSY, TIMES, LoadResult, rounded
from slotwise.bench.offline import BatchTiming, LinearTime
from slotwise.bench.stream_load import StreamLoadResult
from slotwise.console import table
from slotwise.files.disk import written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def load_table(model: str, results: Sequence[LoadResult]) -> Any:
    """A table with a row for each load. batch: requests a batch. model: ms of a batch, with decode. lost: good requests."""
    first = "rate" if any(m.rate is not None for m in results) else "clients"
    columns = [first, "req/s", "p50", "p90", "p95", "p99", "max", "batch", "model", "lost"]
    rows = []
    for m in results:
        times = [_ms(getattr(m, key)) if m.max_ms else "-" for key in TIMES]
        row = [str(m.rate or m.clients), f"{m.req_s:.1f}" if m.req_s < 100 else f"{m.req_s:.0f}", *times, f"{m.mean_batch:.1f}"]
        row += [_ms(m.decode_ms + m.inference_ms), by_status(m.errors) or "0"]
        rows.append(row)
    return table(f"{model}: times in ms", columns, rows)


def stream_table(model: str, results: Sequence[StreamLoadResult]) -> Any:
    """A table with a row for each load of streams. first: until the first piece. between: from one piece to the next."""
    columns = ["clients", "streams/s", "pieces/s", "first p50", "first p99", "between p50", "between p99", "lost"]
    rows = []
    for m in results:
        times = [_ms(v) if m.streams else "-" for v in (m.first_p50_ms, m.first_p99_ms, m.between_p50_ms, m.between_p99_ms)]
        rows.append([str(m.clients), f"{m.streams_s:.1f}", f"{m.pieces_s:.0f}", *times, by_status(m.errors) or "0"])
    return table(f"{model}: times in ms", columns, rows)


def load_notes(results: Sequence[LoadResult]) -> list[str]:
    """What a reader has to know about these numbers: bad requests among them, and a client that was the limit."""
    notes = []
    bad = sum((Counter(m.refused) for m in results), Counter[str]())
    if bad:
        requests = sum(m.requests for m in results)
        lost = sum(m.lost for m in results)
        notes.append(f"{bad.total()} bad requests among {requests} got {by_status(bad)}: {lost} innocent ones lost")
    for m in [m for m in results if m.client_limited]:
        what = f"{m.rate:g} a second" if m.rate else f"{m.clients} clients"
        used = f"the measuring client used {m.client_cores:.2f} of a core"
        limit = "and was the limit" if m.client_cores >= BUSY else "and could not send in time: the machine is too busy"
        notes.append(f"{what}: {used} {limit}; the server can do more (--tool wrk measures with less)")
    return notes


def by_status(counts: dict[str, int]) -> str:
    """For example `503: 12, timeout: 1`."""
    return ", ".join(f"{status}: {count}" for status, count in sorted(counts.items()))


def offline_table(archive: str, timings: Sequence[BatchTiming]) -> Any:
    """A table with a row for each batch size: ms of a batch, and the shares of decode, model and encode."""
    columns = ["batch", "batch ms", "item ms", "items/s", "decode ms", "model ms", "encode ms"]
    rows = []
    for t in timings:
        parts = [f"{_ms(v)} ({v / t.batch_ms:.0%})" for v in (t.decode_ms, t.model_ms, t.encode_ms)]
        rows.append([str(t.n), _ms(t.batch_ms), _ms(t.item_ms), f"{1000 / t.item_ms:.0f}", *parts])
    return table(f"{archive}, no server", columns, rows)


def line_text(line: LinearTime) -> str:
    """The line as a sentence."""
    return f"a batch of n takes {line.a_ms:.3g} * n + {line.b_ms:.3g} ms"


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write one line a row; dicts (errors by status) become text."""
    flat = [{k: by_status(v) if isinstance(v, dict) else v for k, v in row.items()} for row in rows]
    with written_whole(path) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as target:
        writer = csv.DictWriter(target, list(flat[0]))
        writer.writeheader()
        writer.writerows(flat)


def load_figure(model: str, results: Sequence[LoadResult]) -> Figure:
    """Throughput and latency over clients (or over the rate), and of each load the share of answers that came within a time."""
    sorted_times = [m for m in results if m.latencies_ms]
    figure, (left, right, *last) = panels(3 if sorted_times else 2)
    x = [float(m.rate or m.clients) for m in results]
    name = "arrivals a second" if results[0].rate is not None else "clients"
    left.plot(x, [m.req_s for m in results], "o-")
    left.set(xlabel=name, ylabel="answers a second", title=model)
    for key in ("p50_ms", "p95_ms", "p99_ms"):
        right.plot(x, [getattr(m, key) or math.nan for m in results], "o-", label=key.removesuffix("_ms"))
    right.set(xlabel=name, ylabel="latency, ms")
    right.legend()
    from_zero((left, right))
    for m in sorted_times:
        count = len(m.latencies_ms)
        label = f"{m.rate:g} a second" if m.rate is not None else f"{m.clients} clients"
        last[0].step(m.latencies_ms, [100 * (i + 1) / count for i in range(count)], where="post", label=label)
    if sorted_times:
        last[0].set(xlabel="latency, ms", ylabel="answered within, %", ylim=(0, 101))
        last[0].legend()
    return figure


def from_zero(axes: Iterable[Any]) -> None:
    """Let the y axes begin at 0 and end a little above the topmost point."""
    for axis in axes:
        top = axis.dataLim.y1
        axis.set_ylim(0, 1.05 * top if 0 < top < math.inf else 1)


def panels(count: int, columns: int = 4) -> tuple[Figure, Any]:
    """A figure of `count` panels with at most `columns` side by side, drawn without a display."""
    from matplotlib.figure import Figure as NewFigure  # noqa: PLC0415  heavy, optional

    columns = min(count, columns)
    lines = -(-count // columns)
    figure = NewFigure(figsize=(4.6 * columns, 3.6 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for axis in axes:
        axis.grid(True, alpha=0.3)
    return figure, axes


def as_json(results: Sequence[LoadResult]) -> list[dict[str, Any]]:
    """The results as JSON."""
    return [rounded(m) for m in results]


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
