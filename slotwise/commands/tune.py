"""tune: the setting that serves best, found by measurement; simulate: what our own host would do, on no machine."""

from __future__ import annotations

import itertools
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slotwise.commands.options import Body, ModelOrArchive, Name, Poison, Tool
from slotwise.console import Json, emit, out, say, table

if TYPE_CHECKING:
    from slotwise.bench.bodies import RequestBody
    from slotwise.tune.search import Trial
    from slotwise.tune.tuning import TuneResult


def register(app: typer.Typer) -> None:
    """Add tune and simulate."""
    app.command()(tune)
    app.command()(simulate)


def simulate(
    batch_ms: Annotated[float, typer.Option(min=0, help="A batch of n takes batch-ms + request-ms n: as `describe` says.")],
    request_ms: Annotated[float, typer.Option(min=0, help="See --batch-ms.")],
    noise: Annotated[float, typer.Option(min=0, max=1, help="How far batches are from that, as a share of it.")] = 0.05,
    linger: Annotated[str, typer.Option(help="Ways to form batches, with commas between.")] = "free,exact,auto",
    batch_size: Annotated[int, typer.Option(min=1, help="The largest batch.")] = 16,
    max_batch_delay_ms: Annotated[float, typer.Option("--max-batch-delay", min=0, help="The longest wait, in ms.")] = 2.0,
    slo_p99_ms: Annotated[float, typer.Option(min=0, help="The target: an answer within so many ms; 0: none.")] = 0.0,
    workers: Annotated[int, typer.Option(min=1, help="Workers, each as quick as that.")] = 1,
    max_workers: Annotated[
        int, typer.Option(min=0, max=256, help="The load chooses their number, from --workers to that; 0: it stays.")
    ] = 0,
    start_s: Annotated[float, typer.Option(min=0, help="Until a worker more is ready, in seconds.")] = 2.0,
    cores: Annotated[int, typer.Option(min=0, help="Where more workers run than that, each is slower; 0: none is.")] = 0,
    clients: Annotated[int, typer.Option(min=0, help="Clients that ask again when they are answered.")] = 0,
    rate: Annotated[float, typer.Option(min=0, max=1e6, help="Requests a second that come whatever happens.")] = 0.0,
    day: Annotated[bool, typer.Option("--day", help="A day of quiet, ramp, peak and burst in --seconds.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help='A file of lines like {"at_s": 0.25, "sender": "a", "within_s": 1}.')
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=86_400, help="How long requests come, in virtual seconds.")] = 30.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    as_json: Json = False,
) -> None:
    """Say what our own host would do under a load: its own code forms the batches, in virtual time, on no machine."""
    import math
    from dataclasses import asdict
    from typing import get_args

    from slotwise.backends.local.dispatcher import Linger
    from slotwise.bench.offline import LinearTime
    from slotwise.tune import virtual_host

    ways = [way.strip() for way in linger.split(",")]
    if wrong := [way for way in ways if way not in get_args(Linger)]:
        raise typer.BadParameter(f"{wrong[0]!r} is none of {', '.join(get_args(Linger))}", param_hint="--linger")
    line = LinearTime(request_ms, batch_ms)
    if not line.at(1):
        raise typer.BadParameter("a batch has to take some time", param_hint="--batch-ms")
    if math.inf in (batch_ms, request_ms):
        raise typer.BadParameter("an end never comes", param_hint="--batch-ms, --request-ms")
    arrivals = virtual_host.read_trace(trace) if trace else []
    if day:
        most = min(max(workers, max_workers), cores or 256)
        arrivals += virtual_host.day(seconds, 1000 * batch_size * most / line.at(batch_size), seed)
    load = virtual_host.VirtualLoad(seconds, clients, rate, arrivals)
    if not (clients or rate or arrivals):
        raise typer.BadParameter("one of --clients, --rate, --day and --trace says what comes", param_hint="--clients")
    found = {}
    for way in ways:
        setting = virtual_host.VirtualSetting(
            line,
            way,  # type: ignore[arg-type]
            batch_size,
            max_batch_delay_ms,
            slo_p99_ms,
            workers,
            noise,
            max_workers,
            start_s,
            cores,
        )
        found[way] = {key: value for key, value in asdict(virtual_host.serve(setting, load, seed)).items() if key != "sent"}
    columns = ["asked", "answered", "in_time", "refused", "p50_ms", "p99_ms", "mean_batch"]
    columns += ["most_workers", "worker_s"] if max_workers else []
    rows: list[list[object]] = [[way, *(round(one[name], 1) for name in columns)] for way, one in found.items()]

    def render() -> Any:
        for way, one in found.items():
            for change in one["changes"]:
                text = f"{way}, at {change['at']:.0f} s: {change['before']} workers -> {change['after']}: {change['words']}"
                out().print(text, highlight=False, soft_wrap=True, markup=False)
        return table("", ["linger", *(name.replace("_", " ") for name in columns)], rows)

    emit(found, as_json, render)


def tune(
    model: ModelOrArchive = "",
    body: Body = None,
    slo_p99_ms: Annotated[float, typer.Option(min=0.001, help="The target: p99 within so many milliseconds.")] = 200.0,
    clients: Annotated[int, typer.Option(min=1, help="How many clients wait at the same time.")] = 64,
    objective: Annotated[Literal["throughput", "latency"], typer.Option(help="What to make best.")] = "throughput",
    engines: Annotated[str, typer.Option(help="Try these, e.g. onnxruntime,openvino:bf16. Default: the profile's.")] = "",
    max_trials: Annotated[int, typer.Option(min=2, help="Settings to measure at most.")] = 40,
    seconds: Annotated[float, typer.Option(min=0.2, max=86400, help="Measured seconds a trial.")] = 3.0,
    tool: Tool = "slotwise",
    directory: Annotated[
        Path | None, typer.Option("--out", help="Where the report goes. Default: .slotwise/tune/MODEL.")
    ] = None,
    write_setting: Annotated[
        bool, typer.Option("--apply", help="Write the winner into the model's own model.toml and render the config files.")
    ] = False,
    poison: Poison = 0.0,
    mix: Annotated[Path | None, typer.Option(help="A TOML file of bodies with their weights and content types.")] = None,
    oversubscribe: Annotated[bool, typer.Option("--oversubscribe", help="Try more workers than cores, too.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Tune every model of the server in turn, each with its share of the cores.")
    ] = False,
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Find the batch size, delay, workers and threads that serve a model best on a running server.

    What is registered there is not touched. Exit code 2: no setting meets the target; the closest is named.
    """
    from slotwise.errors import SlotwiseError
    from slotwise.files import project
    from slotwise.files.disk import check_writable

    check_writable(directory or project.state_root() / "tune")
    if directory and (directory / "index.html").exists() and not (directory / "tune.json").exists():
        raise SlotwiseError(f"{directory} has an index.html that no tuning wrote", "name another folder with --out")
    if bool(model) is every or (every and (body or mix or directory)):
        raise typer.BadParameter("name one model, or --all without --body, --mix and --out", param_hint="MODEL")
    if poison and tool != "slotwise":
        raise typer.BadParameter(f"{tool} sends one body only", param_hint="--poison")
    if write_setting:
        from slotwise.server.record import need
        from slotwise.tune.profile_edit import check_folder, check_own

        check_own(need(name))
        for one in _served(name) if every else []:
            check_folder(one)
    how = {"max_trials": max_trials, "seconds": seconds, "tool": tool, "poison": poison, "oversubscribe": oversubscribe}
    bodies, goal = _bodies(body, mix), (slo_p99_ms, clients, objective)
    results = []
    missed = False
    failed: dict[str, SlotwiseError] = {}
    for one in _served(name) if every else [model]:
        if every:
            say(one)
        try:
            outcome = _tuned(one, bodies, name, engines, goal, every, write_setting, **how)
            missed = missed or outcome.winner is None
            results.append(_kept(outcome, directory, write_setting, as_json))
        except SlotwiseError as error:
            if not every:
                raise
            failed[one] = error
            say(f"{one}: {error.message}")
    if as_json:
        emit(results if every else results[0], True, lambda: None)
    if failed:
        why = "; ".join(f"{one}: {error.message}" for one, error in failed.items())
        raise SlotwiseError(f"not tuned: {why}", next(iter(failed.values())).hint)
    if missed:
        raise typer.Exit(2)


def _kept(outcome: TuneResult, directory: Path | None, write_setting: bool, as_json: bool) -> dict[str, Any]:
    """Write the report and, where that is wished, the setting; show it to a person."""
    from slotwise.interrupts import held

    changed: list[str] = []
    with held():  # the report and model.toml are written whole
        page = _written(outcome, directory)
        if write_setting and outcome.winner:
            from slotwise.tune.profile_edit import write_setting as write

            changed = write(outcome.winner, outcome.request.model, outcome.machine["profile"], outcome.request.cores)
    result = {**outcome.as_json(), "report": str(page), "applied": changed}
    if not as_json:
        emit(result, False, lambda: _show(outcome, page, changed))
    return result


def _served(name: str) -> list[str]:
    """The models that a server serves."""
    from slotwise.client.management import ManagementClient
    from slotwise.errors import SlotwiseError
    from slotwise.server.record import need

    with ManagementClient(need(name)) as client:
        models = sorted(listed.name for listed in client.list())
    if not models:
        raise SlotwiseError("the server serves no model", "`slotwise register MODEL` first")
    return models


def _bodies(files: list[Path] | None, mix: Path | None) -> list[RequestBody]:
    """The bodies that were named; none where the model's own examples are meant."""
    from slotwise.bench.bodies import from_files, from_mix

    if mix and files:
        raise typer.BadParameter("--body and --mix exclude each other", param_hint="--mix")
    return from_mix(mix) if mix else from_files(files or [])


def _tuned(
    model: str,
    bodies: list[RequestBody],
    name: str,
    engines: str,
    goal: tuple[float, int, Any],
    shared: bool,
    applies: bool,
    **how: Any,
) -> TuneResult:
    """Tune one model. shared: with the cores that the server gives it beside the others. applies: its setting is written."""
    from slotwise.bench.bodies import examples
    from slotwise.deploy.deploy import obtain
    from slotwise.server.record import need
    from slotwise.tune.goal import Goal
    from slotwise.tune.profile_edit import check_folder
    from slotwise.tune.tuning import TuneRequest
    from slotwise.tune.tuning import tune as search

    record = need(name)
    record.need_model_api(f"tuning {model}, which registers trial models,")
    info = obtain(model, record.model_store, say=say)
    if applies:
        check_folder(info.name)
    pairs = [(one.partition(":")[0], one.partition(":")[2]) for one in engines.split(",") if one]
    if shared and info.name in record.shares:
        how["cores"] = record.shares[info.name]
    request = TuneRequest(info.name, Goal(*goal), pairs, **how)
    count = itertools.count(1)
    return search(
        request, record, info, bodies or examples(str(info.path)), say, lambda trial: say(f"{next(count):3} {_line(trial)}")
    )


def _line(trial: Trial) -> str:
    if trial.measured is None:
        return f"{trial.setting}: {trial.note}"
    m = trial.measured
    lost = f", {m.lost} lost" if m.lost else ""
    pruned = ", pruned" if trial.state == "pruned" else ""
    return f"{trial.setting}: {m.req_s:.0f}/s, p99 {m.p99_ms:.1f} ms{lost}{pruned}"


def _written(outcome: TuneResult, directory: Path | None) -> Path:
    from slotwise.files import project
    from slotwise.tune import page

    command = shlex.join(["slotwise", *sys.argv[1:]])
    return page.write(outcome, directory or project.state_root() / "tune" / outcome.request.model, command)


def _show(outcome: TuneResult, page: Path, changed: list[str]) -> Any:
    out().print(f"{'winner' if outcome.winner else 'target not met'}: {outcome.reason}", highlight=False, markup=False)
    for line in changed:
        out().print(line, highlight=False, markup=False)
    out().print(f"report: {page}", highlight=False, soft_wrap=True, markup=False)
    finalists, ratios = (outcome.decision.finalists, outcome.decision.ratios) if outcome.decision else ((), {})
    known = {"no parameters": outcome.default, "profile": outcome.profile, "winner": outcome.winner}
    rows = [
        [
            str(f.setting),
            ", ".join(name for name, setting in known.items() if setting == f.setting),
            f"{f.median('req_s'):.0f}",
            str(ratios.get(f.setting, "")),
            f"{f.median('p99_ms'):.1f}",
        ]
        for f in sorted(finalists, key=lambda f: -f.median("req_s"))
    ]
    return table("the final, medians", ["setting", "", "req/s", "winner to it", "p99 ms"], rows) if rows else None
