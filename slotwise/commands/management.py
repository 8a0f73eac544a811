"""register, unregister, scale, list, describe, ready: the models and workers of a running server."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotwise.commands.options import Force, Name
from slotwise.console import Json, emit, say, table

if TYPE_CHECKING:
    from slotwise.archive.archive_info import ArchiveInfo
    from slotwise.client.live_model import LiveModel
    from slotwise.client.management import ManagementClient

READY_CALL_S = 20.0  # who asks often whether it is ready wants to know also where the server says nothing
Model = Annotated[str, typer.Argument(help="A registered model's name.")]
Version = Annotated[str | None, typer.Option(help="One version of the model (default: the default one).")]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("register")(register_model)
    app.command("list")(list_models)
    app.command("scale")(scale_model)
    app.command("default")(set_default)
    for command in (unregister, describe, ready):
        app.command()(command)


def register_model(
    model: Annotated[str, typer.Argument(help="A model's name or folder, an archive, or an archive's URL.")],
    batch_size: Annotated[int | None, typer.Option(min=1, help="Requests in a full batch.")] = None,
    max_batch_delay: Annotated[
        float | None, typer.Option(min=0, max=60000, help="Milliseconds to wait for a batch to fill.")
    ] = None,
    initial_workers: Annotated[int | None, typer.Option(min=0, help="Worker processes to start.")] = None,
    sha256: Annotated[str | None, typer.Option(help="The archive's SHA-256; a URL needs one.")] = None,
    default: Annotated[bool, typer.Option("--default", help="Requests without a version go to this one from now on.")] = False,
    force: Force = False,
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Register a model with the server's profile (or these settings) and wait until its workers are READY."""
    from slotwise.archive.renewal import outdated
    from slotwise.client.management import ManagementClient
    from slotwise.deploy.deploy import deploy, foreign_note, obtain, registration, requirements_note
    from slotwise.deploy.scaling import check_registrations
    from slotwise.server.lifecycle import need

    record = need(name)
    record.need_model_api(f"registering {model}")
    info = obtain(model, record.model_store, sha256=sha256, say=say)
    if note := foreign_note(info, {**record.overrides, **({"batch_size": batch_size} if batch_size else {})}):
        say(f"{note} (--batch-size N for another)")
    for note in filter(None, (requirements_note(info), outdated(info))):
        say(note)
    requested = {"batch_size": batch_size, "max_batch_delay": max_batch_delay, "initial_workers": initial_workers}
    settings = registration(info, record.effective_profile(), record.overrides, record.kind)
    settings |= {key: value for key, value in requested.items() if value is not None}
    if not force:
        check_registrations([(info, settings)])
    with ManagementClient(record) as client:
        live = deploy(client, info, settings)
        chosen = {"batch_size": batch_size, "max_batch_delay_ms": max_batch_delay, "initial_workers": initial_workers}
        _keep(info, {key: value for key, value in chosen.items() if value is not None})
        if default:
            client.set_default(info.name, info.version)
    emit(asdict(live), as_json, lambda: _summary(live))


def _keep(info: ArchiveInfo, settings: dict[str, Any]) -> None:
    """Keep what was set of an archive of another tool, so that `apply` and the next `serve` do the same."""
    from slotwise.deploy.kept_settings import keep_settings

    if kept := keep_settings(info, settings):
        say(f"kept in {kept.name}, for `serve` and `apply`")


def set_default(
    model: Model,
    version: Annotated[str, typer.Argument(help="A registered version.")],
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Let requests that name no version of a model go to this one."""
    with _client(name) as client:
        client.set_default(model, version)
    emit({"model": model, "default": version}, as_json, lambda: f"{version} is the default of {model}")


def unregister(model: Model, version: Version = None, name: Name = "default", as_json: Json = False) -> None:
    """Take a model away from a server, with what waits in its queue."""
    with _client(name) as client:
        client.record.need_model_api(f"unregistering {model}")
        client.unregister(model, version)
    emit({"unregistered": model}, as_json, lambda: f"{model} unregistered")


def scale_model(
    model: Model,
    workers: Annotated[int, typer.Option(min=0, help="How many worker processes it gets.")],
    version: Version = None,
    force: Force = False,
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Change a model's number of workers and wait until just these are READY; stopped midway, it has what it had."""
    from slotwise.archive.inspection import inspect
    from slotwise.deploy.scaling import scale
    from slotwise.worker.environment.cores import available_cores

    with _client(name) as client:
        live = scale(client, model, workers, version, force=force)
        archive = client.record.model_store / live.archive.rpartition("/")[2]
        if archive.is_file():
            _keep(inspect(archive, need_digests=False), {"initial_workers": workers})
    cores = available_cores()
    if workers > 1 and live.device == "cpu" and (live.threads or 1) * workers > cores:
        say(f"{workers} workers x {live.threads} threads fight for {cores} cores; --set initial_workers={workers} divides them")
    emit(asdict(live), as_json, lambda: _summary(live))


def list_models(name: Name = "default", as_json: Json = False) -> None:
    """List a server's models with their versions, batch settings and workers."""
    with _client(name) as client:
        live = [version for model in client.list() for version in client.describe_all(model.name)]
    columns = ["model", "version", "batch_size", "delay ms", "ready", "MiB", "engine"]
    rows = [
        [
            *(m.name, m.version, m.batch_size, m.max_batch_delay),
            "asleep" if m.asleep else f"{m.ready_workers} of {len(m.workers)}",
            *(sum(w.memory_bytes for w in m.workers) >> 20, m.engine or "?"),
        ]
        for m in live
    ]

    def render() -> Any:
        typer.echo(client.record.listening())
        return table("", columns, rows) if rows else "no model is registered"

    emit([{**asdict(m), "urls": client.record.urls} for m in live], as_json, render)


def describe(model: Model, version: Version = None, name: Name = "default", as_json: Json = False) -> None:
    """Show a model's settings, its workers, and what each of them got: engine, precision, device, threads."""
    with _client(name) as client:
        live = client.describe(model, version)

    def render() -> Any:
        typer.echo(_summary(live))
        for key in ("profile", "engine", "precision", "device", "threads", "padding", "rows"):
            typer.echo(f"  {key:10} {getattr(live, key)}")
        cost = live.batch_cost or {}
        if "choice" in cost:
            typer.echo(f"  batches    {cost['choice']}")
        if "waiting" in cost:
            typer.echo(f"  waiting    {cost['waiting']}")
        if "aside" in cost:
            typer.echo(f"  aside      {cost['aside']} that wait are too late for the target: others go first")
        if by_load := cost.get("workers"):
            typer.echo(
                f"  workers    {by_load['least']} to {by_load['most']}, by the load: {by_load['choice'] or 'no change yet'}"
            )
            for one in by_load["changes"]:
                typer.echo(f"             {one['ago_s']:.0f} s ago: {one['from']} -> {one['to']}, {one['why']}: {one['words']}")
        if "batches" in cost:
            said = f"a batch of n takes {cost['batch_ms']:.3g} + {cost['request_ms']:.3g} n ms"
            typer.echo(f"  cost       {said}, give or take {cost['spread_ms']:.3g} (of {cost['batches']:.0f} batches)")
        typer.echo(f"  inference  {client.record.prediction_url(live.name)}")
        for key, note in (live.workers[0].got.get("notes") or {}).items() if live.workers else ():
            typer.echo(f"  {key}: {note}")
        rows = [[w.id, w.pid, w.status, round(w.memory_bytes / 2**20)] for w in live.workers]
        return table("", ["worker", "pid", "status", "MiB"], rows)

    emit({**asdict(live), "urls": client.record.urls}, as_json, render)


def ready(name: Name = "default", as_json: Json = False) -> None:
    """Exit with 0 only when every model has a READY worker, else with 1."""
    with _client(name, READY_CALL_S) as client:
        workers = {model.name: client.describe(model.name).ready_workers for model in client.list()}
    is_ready = bool(workers) and all(workers.values())
    waiting = ", ".join(model for model, count in workers.items() if not count) or "no model is registered"
    text = f"{'ready' if is_ready else f'not ready: {waiting}'}\n{client.record.listening()}"
    emit({"ready": is_ready, "workers": workers, "urls": client.record.urls}, as_json, lambda: typer.echo(text))
    if not is_ready:
        raise typer.Exit(1)


def _client(name: str, timeout_s: float | None = None) -> ManagementClient:
    """What talks to the running server of that name. timeout_s: seconds for one call; None: the client's own."""
    from slotwise.client.management import ManagementClient
    from slotwise.server.lifecycle import need

    return ManagementClient(need(name), timeout_s=timeout_s) if timeout_s else ManagementClient(need(name))


def _summary(live: LiveModel) -> str:
    return (
        f"{live.name} {live.version}: {live.readiness}, batch_size {live.batch_size}, max_batch_delay {live.max_batch_delay} ms"
    )
