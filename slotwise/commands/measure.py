"""bench: how fast a model answers, with or without a server; roofline: where memory is the limit; demo: slots are kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotwise.commands.options import Body, ModelOrArchive, Name, Poison, Tool, counts, overridden
from slotwise.console import Json, emit, out, progress, say, table
from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from slotwise.bench.bodies import RequestBody
    from slotwise.bench.http_connection import Target
    from slotwise.bench.load import LoadResult
    from slotwise.bench.load_plan import LoadPlan


def register(app: typer.Typer) -> None:
    """Add bench, roofline and demo."""
    app.command()(bench)
    app.command()(roofline)
    app.command()(demo)


def bench(
    model: Annotated[str, typer.Argument(help="A registered model; with --offline an archive or a model to build.")],
    body: Body = None,
    concurrency: Annotated[str, typer.Option(help="Numbers of clients, separated by commas.")] = "1,8,32",
    rate: Annotated[
        float | None, typer.Option(min=0.01, max=1e6, help="Open loop: this many arrivals a second (Poisson).")
    ] = None,
    interval: Annotated[
        float | None, typer.Option(min=1e-4, max=86400, help="Open loop: an arrival every so many seconds.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=86400, help="Measured seconds a step, after a warm-up.")] = 5.0,
    requests: Annotated[int | None, typer.Option(min=1, help="Measure this many requests instead of seconds.")] = None,
    warm_up: Annotated[float, typer.Option(min=0.0, max=86400, help="Seconds before each step that are not counted.")] = 1.0,
    timeout: Annotated[float, typer.Option(min=0.1, max=86400, help="Seconds after which a request counts as lost.")] = 60.0,
    poison: Poison = 0.0,
    records: Annotated[int | None, typer.Option(min=0, help="Records a request, for bodies with payload.records.")] = None,
    tool: Tool = "slotwise",
    csv: Annotated[Path | None, typer.Option(help="Write the numbers to this CSV file.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the numbers into this .png or .svg file.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Time the archive's handler itself, without a server.")] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Ask for streams: time to the first piece and between pieces, pieces a second.")
    ] = False,
    batch_sizes: Annotated[str, typer.Option(help="With --offline: the batch sizes.")] = "1,8,16,32,64",
    profile: Annotated[str, typer.Option(help="With --offline: the profile to run as.")] = "cpu",
    set_: Annotated[list[str] | None, typer.Option("--set", help="With --offline: KEY=VALUE of the profile.")] = None,
    url: Annotated[str | None, typer.Option(help="Load this http:// address instead of a server of slotwise's.")] = None,
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Measure throughput, latency and errors of a model under load."""
    from slotwise.bench.bodies import examples, from_files, with_records
    from slotwise.files.disk import check_target

    check_target(csv)
    check_target(figure)
    bodies = from_files(body) if body else examples(model)
    if records is not None:
        bodies = [with_records(one, records) for one in bodies]
    if offline:
        if stream or rate or interval or poison or requests or figure or tool != "slotwise":
            without = "--stream, --rate, --interval, --poison, --requests, --figure and --tool"
            raise typer.BadParameter(f"it goes without {without}", param_hint="--offline")
        _offline(model, bodies, counts(batch_sizes, "--batch-sizes"), profile, set_, min(seconds, 2.0), csv, as_json)
        return
    from slotwise.bench.load_plan import LoadPlan

    if interval and rate:
        raise typer.BadParameter("it goes without --rate", param_hint="--interval")
    even, rate = interval is not None, 1 / interval if interval else rate
    if stream and (rate or poison or figure or tool != "slotwise"):
        raise typer.BadParameter("it goes without --rate, --interval, --poison, --figure and --tool", param_hint="--stream")
    clients = [1000] if rate else counts(concurrency, "--concurrency")
    plans = [LoadPlan(n, seconds, requests, warm_up, rate, poison, timeout, even=even) for n in clients]

    def target(plan: LoadPlan) -> Target:
        return _target(model, url, name, plan.token_s)

    if stream:
        _streams(model, target, bodies, plans, csv, as_json)
        return
    _finish(model, [_measure(tool, target(plan), bodies, plan) for plan in plans], csv, figure, as_json)


def _target(model: str, url: str | None, name: str, token_s: float) -> Target:
    from slotwise.bench.http_connection import Target
    from slotwise.server.record import need

    if url:
        key = os.environ.get("SLOTWISE_KEY")  # not an option: everybody can read a command line
        return Target(url, {"authorization": f"Bearer {key}"} if key else {})
    return Target.of(need(name), model, token_s)


def _measure(tool: str, target: Target, bodies: list[RequestBody], plan: LoadPlan) -> LoadResult:
    from slotwise.bench import load, load_tools

    what = f"{plan.rate:g} a second" if plan.rate else f"{plan.clients} clients"
    with progress() as bar:
        task = bar.add_task(what, total=100)
        if tool != "slotwise":
            return load_tools.measure(tool, target, bodies, plan)
        measured = load.measure(target, bodies, plan, lambda done: bar.update(task, completed=round(100 * done)))
    if measured.requests and set(measured.errors) == {"connection"} and not measured.req_s:
        raise SlotwiseError(f"nothing answers at {target.url}", "`slotwise list` shows what runs")
    return measured


def _streams(
    model: str,
    target: Callable[[LoadPlan], Target],
    bodies: list[RequestBody],
    plans: list[LoadPlan],
    csv: Path | None,
    as_json: bool,
) -> None:
    from slotwise.bench import report, stream_load

    results = [stream_load.measure(target(plan), bodies, plan) for plan in plans]
    rows = [result.as_json() for result in results]
    emit({"model": model, "streams": rows}, as_json, lambda: report.stream_table(model, results))
    if csv:
        report.write_csv(csv, rows)
    if not any(result.streams for result in results):
        why = report.by_status(results[-1].errors)
        raise SlotwiseError(f"{model} gave no whole stream: {why}", f"`slotwise predict {model} FILE --stream` shows one")


def _finish(model: str, results: list[LoadResult], csv: Path | None, figure: Path | None, as_json: bool) -> None:
    from slotwise.bench import report

    rows = report.as_json(results)
    emit({"model": model, "loads": rows}, as_json, lambda: report.load_table(model, results))
    for note in report.load_notes(results):
        say(note) if as_json else out().print(note, highlight=False, markup=False)
    if csv:
        report.write_csv(csv, rows)
    if figure:
        report.load_figure(model, results).savefig(figure, dpi=150)
    if all(m.req_s == 0 for m in results):
        raise SlotwiseError(
            f"{model} answered no request: {report.by_status(results[-1].errors)}", "`slotwise predict` shows an answer"
        )


def _offline(
    model: str,
    bodies: list[RequestBody],
    sizes: list[int],
    profile: str,
    sets: list[str] | None,
    seconds: float,
    csv: Path | None,
    as_json: bool,
) -> None:
    from dataclasses import asdict

    from slotwise.archive.store import archive_of
    from slotwise.bench import offline, report

    with progress() as bar:
        task = bar.add_task("timing the handler", total=len(sizes))
        timings = offline.measure(
            archive_of(model),
            bodies,
            sizes,
            seconds=seconds,
            environ=offline.environment(profile, overridden(sets)),
            done=lambda timed: bar.advance(task),
        )
    line = offline.fit([(t.n, t.batch_ms) for t in timings])
    rows = [{**asdict(t), "item_ms": t.item_ms} for t in timings]
    emit({"model": model, "batches": rows, "line": asdict(line)}, as_json, lambda: report.offline_table(model, timings))
    if not as_json:
        out().print(report.line_text(line))
    if csv:
        report.write_csv(csv, rows)


def demo(
    name: Name = "default",
    model: Annotated[str, typer.Option(help="The registered digits model.")] = "digits",
    as_json: Json = False,
) -> None:
    """Send 29 digits and 3 bad bodies at once, and show that each sender got its own answer."""
    from slotwise.bench.demo import play, render
    from slotwise.server.record import need

    result = play(need(name), model)
    emit(result.as_json(), as_json, lambda: render(result))
    if not result.kept:
        raise SlotwiseError(result.verdict, "this must not happen; the server's log says more")


def roofline(
    model: ModelOrArchive,
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes to show.")] = "1,2,4,8,16,32,64,128",
    peak_tflops: Annotated[float | None, typer.Option(min=0, help="The machine's peak. Default: measured here.")] = None,
    bandwidth_gbs: Annotated[float | None, typer.Option(min=0, help="Its memory bandwidth. Default: measured here.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it into this .png or .svg file.")] = None,
    as_json: Json = False,
) -> None:
    """Operations and bytes by batch size, and the batch size from which on memory is not the limit."""
    import tempfile
    from dataclasses import asdict

    from slotwise.archive.inspection import extract, inspect
    from slotwise.archive.store import archive_of
    from slotwise.bench import roofline as roof
    from slotwise.files.disk import check_target

    check_target(figure)
    sizes = counts(batch_sizes, "--batch-sizes")
    path = archive_of(model)
    info = inspect(path)
    with tempfile.TemporaryDirectory(prefix="slotwise-roofline-") as folder:
        work = roof.forward_cost(extract(path, Path(folder) / "model", trusted=True), info.model)
    if not peak_tflops or not bandwidth_gbs:
        say("measuring this machine (--peak-tflops and --bandwidth-gbs say it instead)")
        measured = roof.measure_machine()
    machine = roof.Machine(
        peak_tflops * 1e12 if peak_tflops else measured.peak, bandwidth_gbs * 1e9 if bandwidth_gbs else measured.bandwidth
    )
    batches = [roof.at(work, n, machine) for n in sizes]
    enough = {"cached": work.enough(machine), "through_memory": work.enough(machine, cached=False)}
    data = {"model": info.name, "machine": {**asdict(machine), "ridge": machine.ridge}, "work": asdict(work)}
    emit({**data, "batches": batches, "enough": enough}, as_json, lambda: _roof(info.name, machine, batches, enough))
    if figure:
        roof.draw(info.name, work, machine, sizes).savefig(figure, dpi=150)


def _roof(model: str, machine: Any, batches: list[dict[str, Any]], enough: dict[str, int | None]) -> Any:
    columns = ["batch", "Mflop", "MB moved", "flop/byte", "through memory", "least ms", "at most a second"]
    rows = [
        [
            b["n"],
            f"{b['operations'] / 1e6:.3f}",
            f"{b['bytes'] / 1e6:.3f}",
            f"{b['intensity']:.2f}",
            f"{b['through_memory']:.2f}",
            f"{b['floor_ms']:.3g}",
            f"{b['most_a_second']:.0f}",
        ]
        for b in batches
    ]
    out().print(table(model, columns, rows))
    ridge = f"{machine.peak / 1e12:.3g} TFLOP/s over {machine.bandwidth / 1e9:.4g} GB/s = {machine.ridge:.2f} operations a byte"
    n = enough["cached"]
    return f"{ridge}: " + (f"from batch size {n} on memory is not the limit" if n else "memory is always the limit")
