"""profile list, show, render: the keys of a profile, and the config files made from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slotwise.commands.options import ProfileName, Set, pairs
from slotwise.console import Json, emit, say, table

if TYPE_CHECKING:
    from slotwise.profiles.profile import Profile

Form = Literal["toml", "torchserve", "mms"]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    profile = typer.Typer(no_args_is_help=True, help="Profiles: what they hold, and the config files made from them.")
    profile.command("list")(list_profiles)
    profile.command("show")(show)
    profile.command("render")(render)
    app.add_typer(profile, name="profile")


def list_profiles(as_json: Json = False) -> None:
    """List the profiles: those of this folder and those of slotwise."""
    from slotwise.files.project import profiles
    from slotwise.profiles.profile import load_profile

    loaded = [load_profile(name, environ={}, cores=0) for name in profiles()]
    keys = ("name", "batch_size", "max_batch_delay_ms", "initial_workers", "device", "engine", "padding")
    columns = ["name", "batch", "delay ms", "workers", "device", "engine", "padding"]
    data = [profile.model_dump() for profile in loaded]

    def render_list() -> Any:
        for profile in loaded:
            typer.echo(f"{profile.name}: {profile.description}")
        return table("", columns, [[getattr(profile, key) for key in keys] for profile in loaded])

    emit(data, as_json, render_list)


def show(
    name: ProfileName,
    set_: Set = None,
    form: Annotated[Form, typer.Option("--as", help="The profile's own keys, or a server's config.properties.")] = "toml",
    as_json: Json = False,
) -> None:
    """Show every key of a profile, with what the environment and --set change."""
    from slotwise.profiles.profile import load_profile
    from slotwise.profiles.render import entries, of_own_host, render_properties

    profile = load_profile(name, pairs(set_))
    if form != "toml":
        text = render_properties(profile, form, models=entries(profile))
        if left_out := of_own_host(profile):
            say(f'without {", ".join(left_out)}: "auto" is for `slotwise serve --server slotwise` alone')
        emit({"name": profile.name, "server": form, "properties": text}, as_json, lambda: typer.echo(text, nl=False))
        return
    emit(profile.model_dump(), as_json, lambda: typer.echo(_toml(profile), nl=False))


def render(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 where a file is not up to date.")] = False,
    as_json: Json = False,
) -> None:
    """Write profiles/NAME.properties, their log settings, and config.properties (= cpu) for a bare `torchserve`."""
    from slotwise.profiles import render as rendering

    if check:
        rendering.check(Path.cwd())
        emit({"up_to_date": True}, as_json, lambda: "every config file is what its profile renders to")
        return
    written = rendering.write(Path.cwd())
    emit({"written": written}, as_json, lambda: "\n".join(f"wrote {path}" for path in written) or "nothing to write")


def _toml(profile: Profile) -> str:
    import json

    from slotwise.profiles.profile import SECTIONS

    lines = [f"# {profile.name}: {profile.description}"]
    for section in SECTIONS:
        lines += ["", f"[{section}]"]
        for key in profile.section(section):
            setting = f"{key} = {json.dumps(getattr(profile, key))}"
            lines.append(f"{setting:40}# {type(profile).model_fields[key].description}")
    return "\n".join(lines) + "\n"
