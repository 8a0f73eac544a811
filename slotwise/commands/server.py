"""serve, stop, token, java-home: a real model server on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from slotwise.commands.options import Force, Name, Profile, ServerKind, Set, overridden
from slotwise.console import Json, emit, progress, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slotwise.archive.archive_info import ArchiveInfo
    from slotwise.client.live_model import LiveModel
    from slotwise.deploy.serving import UnservedModel
    from slotwise.profiles.profile import Profile as LoadedProfile
    from slotwise.server.lifecycle import ServerRecord


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (serve, stop, token):
        app.command()(command)
    app.command("java-home")(java_home)


def serve(
    models: Annotated[list[str] | None, typer.Argument(help="Names, folders or archives of models.")] = None,
    profile: Profile = "cpu",
    server: Annotated[ServerKind, typer.Option(help="Which server to start.")] = "torchserve",
    ray_address: Annotated[
        str, typer.Option(help="With ray: join this cluster (auto, or HOST:PORT) instead of starting one here.")
    ] = "",
    set_: Set = None,
    name: Name = "default",
    port: Annotated[
        int, typer.Option(min=0, max=32_000, help="Inference port; management and metrics follow. 0: free ones.")
    ] = 8080,
    share: Annotated[str, typer.Option(help="Parts of the cores, e.g. a=2,b=1. Default: equal ones.")] = "",
    force: Force = False,
    strict: Annotated[bool, typer.Option("--strict", help="Serve nothing where one of the models is broken.")] = False,
    guard: Annotated[bool, typer.Option("--guard", help="Put a guard around archives of other tools first.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the models are ready; `slotwise stop` ends it.")
    ] = False,
    restart_after_s: Annotated[
        float, typer.Option(min=0, help="Start it again once it has answered no ping for so long; 0: never.")
    ] = 60.0,
    log_format: Annotated[
        Literal["text", "json"] | None,
        typer.Option(help="How its logs are written; json: an object a line. Java's servers write text."),
    ] = None,
    access_log: Annotated[
        Literal["common", "json"] | None, typer.Option(help="With --server slotwise or ray: log every request and refusal.")
    ] = None,
    remember: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Requests that `slotwise trace` and `top` know; --server slotwise or ray.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Start a server with these models, ready to answer; archives that are missing are built first."""
    from slotwise import interrupts
    from slotwise.archive.renewal import outdated
    from slotwise.deploy import watchdog
    from slotwise.deploy.deploy import foreign_note, obtain, preloaded, registration, requirements_note
    from slotwise.deploy.java_training import end_training, train_in_background
    from slotwise.deploy.scaling import check_registrations
    from slotwise.deploy.serving import complaint, deploy_each, gather
    from slotwise.deploy.shares import parse_parts, share_cores
    from slotwise.deploy.takeover import forget_interrupted
    from slotwise.files import project
    from slotwise.files.disk import OnlyOne
    from slotwise.profiles.ports import Ports
    from slotwise.profiles.profile import load_profile
    from slotwise.server.lifecycle import check_can_start, start, successor
    from slotwise.server.lifecycle import stop as stop_server
    from slotwise.worker.environment.cores import available_cores

    _check_seen(server, log_format, access_log, remember)
    project.enter()
    _set_watched(log_format, access_log, remember)
    overrides = overridden(set_)
    loaded_profile = load_profile(profile, overrides, {})
    loaded_profile.check_kind(server)
    ports = Ports.at(port)
    store = project.model_store()
    _check_cluster(server, ray_address)
    starting = OnlyOne(project.state_dir(name) / "server.starting", f"a server named {name!r} is being started already")
    check_can_start(name, server, ports)  # before an archive is built, which may take minutes
    forget_interrupted(name, say)
    archives, unserved = gather(models or [], lambda model: obtain(model, store, say=say, guarded=guard), strict)
    names = [info.name for info in archives]
    shares = share_cores(names, available_cores(), parse_parts(share, names)) if len(names) > 1 else {}
    if shares:
        say(f"cores: {', '.join(f'{model} {count}' for model, count in shares.items())}, of {available_cores()}")
    for note in filter(None, (foreign_note(info, overrides) for info in archives)):
        say(f"{note} (--set batch_size=N for another)")
    for note in filter(None, (note(info) for info in archives for note in (requirements_note, outdated))):
        say(note)
    if not force:
        check_registrations([(info, registration(info, loaded_profile, overrides, server)) for info in archives])
    watchdog.end(name)  # of a server of that name that crashed
    say(f"starting {server}")
    loaded = None if loaded_profile.model_api else preloaded(archives, loaded_profile, overrides)
    with interrupts.held():
        record = start(
            name,
            server,
            loaded_profile,
            model_store=store,
            ports=ports,
            overrides=overrides,
            models=loaded,
            shares=shares,
            cluster=ray_address,
            expected=names,
        )
        starting.release()
        try:
            with interrupts.let_through():
                live = deploy_each(archives, lambda info: _deploy(record, info, loaded_profile), unserved, strict)
                emit(_as_json(record, live, unserved), as_json, lambda: _show(record, live))
                if train_in_background(server, record.state_dir):
                    say("making the next start quicker, in the background (SLOTWISE_JAVA_CACHE=0: never)")
            if detach:
                interrupts.settle()
                watchdog.start_detached(name, restart_after_s)
            else:
                record = _hold(record, unserved, watchdog.watching(restart_after_s, say))
        except BaseException:
            stop_server(record)
            raise
        if not detach:
            end_training(record.state_dir)
            stop_server(record)
            if successor(record, patient=not interrupts.signal_came()) is not None:
                say("`slotwise apply` has put another server in its place, which runs on")
                watchdog.start_detached(name, restart_after_s)
            interrupts.say_stopped()
    if unserved:
        raise complaint(unserved)


def _set_watched(log_format: str | None, access_log: str | None, remember: int) -> None:
    """For every process that is started from here."""
    from slotwise.log_format import ACCESS_VARIABLE, REMEMBER_VARIABLE, VARIABLE

    wanted = {VARIABLE: log_format, ACCESS_VARIABLE: access_log, REMEMBER_VARIABLE: str(remember) if remember else None}
    os.environ |= {name: value for name, value in wanted.items() if value}


def _check_seen(server: str, log_format: str | None, access_log: str | None, remember: int) -> None:
    """Raise SlotwiseError for an option that this server would not notice."""
    from slotwise.errors import SlotwiseError

    option = "--remember" if remember else "--access-log" if access_log else ""
    if option and server not in ("slotwise", "ray"):
        message = f"{option} is for --server slotwise or ray: {server} does not have it"
        raise SlotwiseError(message, f"`slotwise gateway {option} {remember or access_log}` does it in front of {server}")
    if log_format == "json" and server in ("torchserve", "mms"):
        raise SlotwiseError(f"--log-format json is not for {server}, which writes its own logs", "leave it out")


def _check_cluster(server: str, ray_address: str) -> None:
    from slotwise.errors import SlotwiseError
    from slotwise.server.ray.cluster import check_address

    if ray_address and server != "ray":
        raise SlotwiseError("--ray-address is the address of a Ray cluster", "serve with --server ray")
    if ray_address:
        check_address(ray_address)


def _hold(
    record: ServerRecord, unserved: Sequence[UnservedModel], look: Callable[[ServerRecord], ServerRecord]
) -> ServerRecord:
    """Stay in the foreground; returns the server that serves in the end. A signal is held by now: it ends the wait."""
    from slotwise.deploy.serving import complaint
    from slotwise.server.lifecycle import wait_until_ended

    if unserved:
        say(complaint(unserved).message)
    say("Ctrl-C stops it")
    return wait_until_ended(record, look)


def stop(name: Annotated[str, typer.Argument(help="The server's name.")] = "default", as_json: Json = False) -> None:
    """Stop a server and everything it started, and the gateway in front of it."""
    from slotwise.deploy import watchdog
    from slotwise.deploy.java_training import end_training
    from slotwise.files import project
    from slotwise.frontend.process import stop as stop_gateway
    from slotwise.server.lifecycle import ServerRecord, check_ours
    from slotwise.server.lifecycle import stop as stop_server

    record = ServerRecord.load(project.state_root() / name)
    if record is not None:
        check_ours(record)  # before anything ends
    if stop_gateway(name):  # first: it answers what is in flight
        say("gateway stopped")
    watchdog.end(name)  # it would start the server again
    record = ServerRecord.load(project.state_root() / name)  # as it is by now
    ran = record is not None and record.alive()
    if record is not None:
        end_training(record.state_dir)
        stop_server(record)  # also where it crashed: it may have left workers behind
    emit({"name": name, "stopped": ran}, as_json, lambda: f"{name} stopped" if ran else f"no server named {name!r} is running")


def token(
    kind: Annotated[Literal["inference", "management"], typer.Argument(help="Which API the token opens.")],
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Print a server's valid token, renewed where it has expired."""
    from slotwise.client.tokens import token as valid_token
    from slotwise.errors import SlotwiseError
    from slotwise.server.lifecycle import need

    record = need(name)
    valid = valid_token(record, kind)
    if valid is None:
        raise SlotwiseError(
            "Multi Model Server has no tokens", "leave the Authorization header out; it listens on loopback only"
        )
    emit({"kind": kind, "token": valid}, as_json, lambda: typer.echo(valid))


def java_home(as_json: Json = False) -> None:
    """Print the JAVA_HOME that the servers are started with."""
    from slotwise.server.java.runtime import java_home as home

    path = str(home())
    emit({"java_home": path}, as_json, lambda: typer.echo(path))


def _deploy(record: ServerRecord, info: ArchiveInfo, profile: LoadedProfile) -> LiveModel:
    from slotwise.client.management import ManagementClient
    from slotwise.deploy.deploy import deploy, registration

    loaded = not profile.takes_registrations(record.kind)
    say(f"loading {info.name} {info.version}" if loaded else f"registering {info.name} {info.version}")
    with ManagementClient(record) as client, progress() as bar:
        task = bar.add_task(f"loading {info.name}", total=None)

        def advance(ready: int, requested: int) -> None:
            bar.update(task, completed=ready, total=requested)

        return deploy(client, info, registration(info, profile, record.overrides, record.kind), advance, preloaded=loaded)


def _as_json(record: ServerRecord, live: list[LiveModel], unserved: Sequence[UnservedModel]) -> dict[str, object]:
    from dataclasses import asdict

    facts = {"name": record.name, "server": record.kind, "pid": record.pid, "profile": record.profile}
    broken = [{"model": model.name, "error": model.problem.message} for model in unserved]
    models = [asdict(model) for model in live]
    return {**facts, "urls": record.urls, "state": str(record.state_dir), "models": models, "unserved": broken}


def _show(record: ServerRecord, live: list[LiveModel]) -> None:
    from slotwise.bench.bodies import example_file
    from slotwise.files import project

    for model in live:
        what = f"{model.name} {model.version} is READY: {model.ready_workers} worker(s), batch_size {model.batch_size}"
        typer.echo(f"{what}, max_batch_delay {model.max_batch_delay} ms, engine {model.engine or 'unknown'}")
    typer.echo(record.listening())
    named = f" --name {record.name}" if record.name != "default" else ""
    token_command = f"{project.own_command()} token inference{named}"
    header = f'-H "Authorization: Bearer $({token_command})" ' if record.kind != "mms" else ""
    for model in live[:1]:
        if record.kind == "triton":
            typer.echo(f"try: {project.own_command()} predict{named} {model.name} {example_file(model.name)}")
            continue
        typer.echo(f"try: curl {header}{record.prediction_url(model.name)} -T {example_file(model.name)}")
