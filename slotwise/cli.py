"""The command line: one command, `slotwise`, whose subcommands are named like the calls of the management API.

Exit codes: 0 done, 1 failed (one line and a hint), 2 wrong usage or a target that was not met, 130 stopped by a signal.
Whatever takes long to import is imported in `main`, after `interrupts.install`.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from slotwise import __version__, commands, interrupts
from slotwise.errors import BASE, EXTRAS, SlotwiseError, missing_package

if TYPE_CHECKING:
    import typer

STOPPED = 130


def _print_version(requested: bool) -> None:
    import typer

    if requested:
        typer.echo(__version__)
        raise typer.Exit


def build_app() -> typer.Typer:
    """The whole command line, with the commands of every module in `slotwise.commands`."""
    import typer

    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.callback()
    def _root(
        version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
        home: Path | None = typer.Option(
            None, "--home", help="Work in this project folder: its models, its model_store, its .slotwise.", metavar="FOLDER"
        ),
    ) -> None:
        """Batch-safe handlers, archives and tooling for TorchServe, MMS, Ray Serve, Triton and a host of its own."""
        if home is not None:
            os.chdir(home)

    shared = {"options"}  # no command of its own
    for module in sorted({info.name for info in pkgutil.iter_modules(commands.__path__)} - shared):
        importlib.import_module(f"slotwise.commands.{module}").register(app)
    return app


def _as_slotwise_error(problem: SlotwiseError | ModuleNotFoundError | OSError) -> SlotwiseError:
    """The error to print, also for a file that cannot be used and an optional package. Another missing module is a bug."""
    if isinstance(problem, SlotwiseError):
        return problem
    if isinstance(problem, OSError):
        import tempfile

        from slotwise.files import disk

        if problem.filename is None and _folder_is_gone():
            return SlotwiseError(
                "the folder that this was started in is not there any more", "go to another one, or name it with --home"
            )
        state = Path(os.environ.get("SLOTWISE_HOME") or ".slotwise")
        return disk.explain(problem, (Path("model_store"), state, Path(tempfile.gettempdir()), Path()))
    if (problem.name or "").split(".")[0] not in (*BASE, *EXTRAS):
        raise problem
    return missing_package(problem.name or "", "this command")


def _folder_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def main() -> None:
    """Run the command line and exit. An error that a person can mend is printed as one line and a hint, with exit code 1."""
    interrupts.install()
    for stream in (sys.stdout, sys.stderr):  # a terminal that has no letter for something gets its number
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = _exit_code()
    interrupts.ignore_signals()
    sys.exit(code)


def _exit_code() -> int | str | None:
    """Run the command line. Signals are held afterwards, so that none comes between the outcome and the exit code."""
    try:
        with interrupts.let_through():
            build_app()()
    except (SlotwiseError, ModuleNotFoundError, OSError) as problem:
        error = _as_slotwise_error(problem)
        sys.stderr.write(f"error: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"hint: {error.hint}\n")
        return 1
    except KeyboardInterrupt:
        interrupts.say_stopped()
        return STOPPED
    except SystemExit as end:
        if end.code == STOPPED:  # typer has turned the KeyboardInterrupt into this
            interrupts.say_stopped()
        return end.code
    return 0


if __name__ == "__main__":
    main()
