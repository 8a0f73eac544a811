"""doctor: what is installed and whether a request gets through, for a person and for a bug report."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from slotwise.console import Json, emit, say


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(doctor)


def doctor(
    request: Annotated[
        bool, typer.Option("--request/--no-request", help="Start a server of its own and send it a request.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Show the machine, what is installed and missing, which servers run, and whether a request gets through.

    The first thing to paste into a bug report. Exit code 1: an installed server lets no request through, or there is none.
    """
    from slotwise.doctor import diagnosis
    from slotwise.doctor.trial_request import ask
    from slotwise.errors import SlotwiseError

    diagnosed: dict[str, Any] = {**diagnosis.machine(), **diagnosis.installed(), "running": diagnosis.running_servers()}
    diagnosed["old_archives"] = diagnosis.old_archives()
    trials: dict[str, str] = {}
    failed = not any(diagnosed["servers"].values())
    for package, kind in diagnosis.SERVERS.items() if request else ():
        if diagnosed["servers"][package]:
            say(f"sending a request through {kind}")
            try:
                trials[kind] = ask(kind)
            except SlotwiseError as error:
                failed, trials[kind] = True, f"no request gets through: {error.message} ({error.hint})"
    diagnosed["requests"] = trials
    emit(diagnosed, as_json, lambda: typer.echo("\n".join(_lines(diagnosed))))
    if failed:
        raise typer.Exit(1)


def _lines(diagnosed: dict[str, Any]) -> list[str]:
    lines = [f"slotwise    {diagnosed['slotwise']}, Python {diagnosed['python']}"]
    processor = ", ".join(diagnosed["instructions"]) or "no AVX2"
    lines.append(f"processor   {diagnosed['cores']} cores, {processor}; CUDA: {', '.join(diagnosed['cuda']) or 'none'}")
    lines.append(f"memory      {diagnosed['free_memory_mib']} MiB free of {diagnosed['memory_mib']} MiB")
    lines += [f"{key:11} {diagnosed[key]}" for key in ("disk", "folder", "state", "locale", "java")]
    for kind in ("servers", "engines", "tools"):
        named = (f"{name} {what or 'none'}" for name, what in diagnosed[kind].items())
        lines.append(f"{kind:11} {', '.join(named)}")
    for extra in diagnosed["missing"]:
        lines.append(f"missing     {extra['extra']} ({', '.join(extra['packages'])}): {extra['brings']}")
        lines.append(f"            {extra['get']}")
    for server in diagnosed["running"] or ():
        lines.append(
            f"running     {server['name']}: {server['kind']}, profile {server['profile']}, {server['urls']['inference']}"
        )
        lines += [f"            {model}" for model in server["models"]]
        lines += [f"            gateway {server['gateway']}"] if server["gateway"] else []
        lines += [f"            note: {note}" for note in server["notes"]]
    if not diagnosed["running"]:
        lines.append("running     no server of this project")
    lines += [f"archive     {line}" for line in diagnosed.get("old_archives", ())]
    return lines + [f"request     {answer}" for answer in diagnosed["requests"].values()]
