"""tune: the setting that serves best, found by measurement; roofline: where memory stops being the limit."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slotwise.commands.measure import counts
from slotwise.console import Json, emit, out, say, table

if TYPE_CHECKING:
    from slotwise.tune.search import Trial
    from slotwise.tune.tuning import TuneResult

Body = Annotated[
    list[Path] | None, typer.Option(help="A file to send, or a folder of them; repeatable. Default: the model's examples.")
]


def register(app: typer.Typer) -> None:
    """Add tune and roofline."""
    app.command()(tune)
    app.command()(roofline)


def tune(
    model: Annotated[str, typer.Argument(help="A model's name, folder or archive.")],
    body: Body = None,
    slo_p99_ms: Annotated[float, typer.Option(min=0.001, help="The target: p99 within so many milliseconds.")] = 200.0,
    clients: Annotated[int, typer.Option(min=1, help="How many clients wait at the same time.")] = 64,
    objective: Annotated[Literal["throughput", "latency"], typer.Option(help="What to make best.")] = "throughput",
    engines: Annotated[str, typer.Option(help="Try these, e.g. onnxruntime,openvino:bf16. Default: the profile's.")] = "",
    max_trials: Annotated[int, typer.Option(min=2, help="Settings to measure at most.")] = 40,
    seconds: Annotated[float, typer.Option(min=0.2, help="Measured seconds a trial.")] = 3.0,
    tool: Annotated[Literal["slotwise", "wrk", "ab"], typer.Option(help="Measure with this program.")] = "slotwise",
    directory: Annotated[
        Path | None, typer.Option("--out", help="Where the report goes. Default: .slotwise/tune/MODEL.")
    ] = None,
    write_setting: Annotated[
        bool, typer.Option("--apply", help="Write the winner into the profile and render the config files.")
    ] = False,
    study: Annotated[
        Literal["batching"] | None, typer.Option(help="Draw the classic study instead, on a server of its own.")
    ] = None,
    name: Annotated[str, typer.Option(help="The server's name.")] = "default",
    as_json: Json = False,
) -> None:
    """Find the batch size, delay, workers and threads that serve a model best on a running server.

    What is registered there is not touched. Exit code 2: no setting meets the target; the closest is named.
    """
    from slotwise import project
    from slotwise.disk import check_writable
    from slotwise.interrupts import held

    check_writable(directory or project.state_root() / "tune")
    if study:
        _study(model, body, seconds, directory, as_json)
        return
    if write_setting:
        from slotwise.server.record import need
        from slotwise.tune.profile_edit import check_own

        check_own(need(name))
    outcome = _tuned(model, body, slo_p99_ms, clients, objective, engines, max_trials, seconds, tool, name)
    changed: list[str] = []
    with held():  # the report and the profile are written whole
        page = _written(outcome, directory)
        if write_setting and outcome.winner:
            from slotwise.tune.profile_edit import write_setting as write

            changed = write(outcome.winner, outcome.request.model, outcome.machine["profile"], outcome.machine["cores"])
    emit({**outcome.as_json(), "report": str(page), "applied": changed}, as_json, lambda: _show(outcome, page, changed))
    if outcome.winner is None:
        raise typer.Exit(2)


def _tuned(
    model: str,
    body: list[Path] | None,
    slo_p99_ms: float,
    clients: int,
    objective: Any,
    engines: str,
    trials: int,
    seconds: float,
    tool: str,
    name: str,
) -> TuneResult:
    from slotwise.bench.bodies import examples, from_files
    from slotwise.deploy.deploy import obtain
    from slotwise.server.record import need
    from slotwise.tune.goal import Goal
    from slotwise.tune.tuning import TuneRequest
    from slotwise.tune.tuning import tune as search

    record = need(name)
    record.need_model_api(f"tuning {model}, which registers trial models,")
    info = obtain(model, record.model_store, say=say)
    bodies = from_files(body) if body else examples(str(info.path))
    pairs = [(one.partition(":")[0], one.partition(":")[2]) for one in engines.split(",") if one]
    order = TuneRequest(info.name, Goal(slo_p99_ms, clients, objective), pairs, trials, seconds, tool=tool)
    count = iter(range(1, trials + 1))
    return search(order, record, info, bodies, say, lambda trial: say(f"{next(count):3} {_line(trial)}"))


def _line(trial: Trial) -> str:
    if trial.measured is None:
        return f"{trial.setting}: {trial.note}"
    m = trial.measured
    lost = f", {m.lost} lost" if m.lost else ""
    pruned = ", pruned" if trial.state == "pruned" else ""
    return f"{trial.setting}: {m.req_s:.0f}/s, p99 {m.p99_ms:.1f} ms{lost}{pruned}"


def _written(outcome: TuneResult, directory: Path | None) -> Path:
    from slotwise import project
    from slotwise.tune import page

    command = shlex.join(["slotwise", *sys.argv[1:]])
    return page.write(outcome, directory or project.state_root() / "tune" / outcome.request.model, command)


def _show(outcome: TuneResult, page: Path, changed: list[str]) -> Any:
    out().print(f"{'winner' if outcome.winner else 'target not met'}: {outcome.reason}", highlight=False)
    for line in changed:
        out().print(line, highlight=False)
    out().print(f"report: {page}", highlight=False, soft_wrap=True)
    finalists = outcome.decision.finalists if outcome.decision else ()
    known = {"no parameters": outcome.default, "profile": outcome.profile, "winner": outcome.winner}
    rows = [
        [
            str(f.setting),
            ", ".join(name for name, setting in known.items() if setting == f.setting),
            f"{f.median('req_s'):.0f}",
            f"{f.spread('req_s'):.0f}",
            f"{f.median('p99_ms'):.1f}",
        ]
        for f in sorted(finalists, key=lambda f: -f.median("req_s"))
    ]
    return table("the final, medians", ["setting", "", "req/s", "spread", "p99 ms"], rows) if rows else None


def _study(model: str, body: list[Path] | None, seconds: float, directory: Path | None, as_json: bool) -> None:
    from slotwise import project
    from slotwise.interrupts import held
    from slotwise.tune.study import render, run, write

    result = run(model, body, seconds, say)
    with held():
        page = write(result, directory or project.state_root() / "tune" / f"{result.model}-batching")
    emit({**result.as_json(), "report": str(page)}, as_json, lambda: render(result, page))


def roofline(
    model: Annotated[str, typer.Argument(help="A model's name, folder or archive.")],
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes to show.")] = "1,2,4,8,16,32,64,128",
    peak_tflops: Annotated[float | None, typer.Option(min=0, help="The machine's peak. Default: measured here.")] = None,
    bandwidth_gbs: Annotated[float | None, typer.Option(min=0, help="Its memory bandwidth. Default: measured here.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it into this .png or .svg file.")] = None,
    as_json: Json = False,
) -> None:
    """Operations and bytes by batch size, and the batch size from which on memory is not the limit."""
    import tempfile
    from dataclasses import asdict

    from slotwise.archive.build import extract, inspect
    from slotwise.archive.store import archive_of
    from slotwise.bench import roofline as roof
    from slotwise.disk import check_target

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
    columns = ["batch", "Mflop", "MB moved", "flop/byte", "through memory", "least ms"]
    rows = [
        [
            b["n"],
            f"{b['operations'] / 1e6:.3f}",
            f"{b['bytes'] / 1e6:.3f}",
            f"{b['intensity']:.2f}",
            f"{b['through_memory']:.2f}",
            f"{b['floor_ms']:.3g}",
        ]
        for b in batches
    ]
    out().print(table(model, columns, rows))
    ridge = f"{machine.peak / 1e12:.3g} TFLOP/s over {machine.bandwidth / 1e9:.4g} GB/s = {machine.ridge:.2f} operations a byte"
    n = enough["cached"]
    return f"{ridge}: " + (f"from batch size {n} on memory is not the limit" if n else "memory is always the limit")
