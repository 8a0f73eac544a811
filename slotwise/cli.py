"""One command, `slotwise`; its subcommands carry the management API's words.

Exit codes: 0 done, 1 failed (one line and a hint), 2 wrong usage or a target that was not met.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import typer

from slotwise import __version__, commands
from slotwise.errors import EXTRAS, SlotwiseError, missing_package


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def build_app() -> typer.Typer:
    """The whole command line, with the commands of every module in `slotwise.commands`."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.callback()
    def _root(
        version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    ) -> None:
        """Batch-safe handlers, archives and tooling for TorchServe and Multi Model Server."""

    for module in sorted(info.name for info in pkgutil.iter_modules(commands.__path__)):
        importlib.import_module(f"slotwise.commands.{module}").register(app)
    return app


def _said(problem: SlotwiseError | ModuleNotFoundError | OSError) -> SlotwiseError:
    """A file that cannot be used or an optional package that is missing is no bug of ours; another missing module is one."""
    if isinstance(problem, SlotwiseError):
        return problem
    if isinstance(problem, OSError):
        return SlotwiseError(f"{problem.filename}: {problem.strerror}" if problem.filename else str(problem))
    if (problem.name or "").split(".")[0] not in EXTRAS:
        raise problem
    return missing_package(problem.name or "", "this command")


def main() -> None:
    """Run the command line; what a person can do something about becomes one line, a hint and exit code 1."""
    try:
        build_app()()
    except (SlotwiseError, ModuleNotFoundError, OSError) as problem:
        error = _said(problem)
        sys.stderr.write(f"error: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"hint: {error.hint}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
