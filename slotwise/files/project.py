"""Find the files that slotwise reads (handlers, models, profiles) and the folders it writes (`.slotwise/`, `model_store/`).

Files to read are looked for in the current folder first, then in the checkout that slotwise was installed from, then in the
wheel's own copy. Everything is written below the current folder, or below `$SLOTWISE_HOME`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import typer

from slotwise import console
from slotwise.errors import SlotwiseError
from slotwise.interrupts import held

PACKAGE = Path(__file__).resolve().parents[1]
FORMAT, FORMAT_FILE = 1, "format"  # of the state folder; releases before 0.3.0 wrote no such file


def _roots() -> list[Path]:
    """Folders that may hold handlers/, models/ and profiles/, in order of preference."""
    checkout, carried = PACKAGE.parent, PACKAGE / "_data"
    given = checkout if (checkout / "handlers").is_dir() and (checkout / "pyproject.toml").is_file() else carried
    return list(dict.fromkeys([Path.cwd(), given]))


def _first(relative: str) -> Path | None:
    return next((root / relative for root in _roots() if (root / relative).exists()), None)


def models() -> dict[str, Path]:
    """Every known model's folder by name."""
    folders: dict[str, Path] = {}
    for root in _roots():
        for spec in sorted((root / "models").glob("*/model.toml")):
            folders.setdefault(spec.parent.name, spec.parent)
    return dict(sorted(folders.items()))


def model_folder(name_or_path: str) -> Path:
    """The folder of a model given by its name, or by the path of a folder that holds a model.toml."""
    path = Path(name_or_path)
    if (path / "model.toml").is_file():
        return path.resolve()
    known = models()
    if name_or_path in known:
        return known[name_or_path]
    if path.is_dir():
        raise SlotwiseError(f"the folder {name_or_path} has no model.toml", "`slotwise new NAME` writes a folder to start from")
    raise SlotwiseError(
        f"there is no model {name_or_path!r}",
        f"known models: {', '.join(known)}; or give a folder that holds a model.toml",
    )


def own_folder(folder: Path) -> Path:
    """A model's folder that may be written to. A folder of the wheel is copied to ./models/NAME first."""
    if PACKAGE not in folder.parents:
        return folder
    copy = Path.cwd() / "models" / folder.name
    if not copy.exists():
        with held():  # half a copy would look like a whole one
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def own_command() -> str:
    """What a person types here to run slotwise: its name, or its path where it is not on the PATH."""
    if shutil.which("slotwise"):
        return "slotwise"
    script = Path(sys.executable).with_name("slotwise")
    return str(script.relative_to(Path.cwd())) if script.is_relative_to(Path.cwd()) else str(script)


def handler_file(name: str) -> Path:
    """The file of a given handler, by its name without .py."""
    file = _first(f"handlers/{name}.py")
    if file is None:
        names = sorted({file.stem for root in _roots() for file in (root / "handlers").glob("*.py")})
        raise SlotwiseError(f"there is no handler {name!r}", f"given handlers: {', '.join(names)}; or name a .py file")
    return file


def profiles() -> list[str]:
    """The names of all profiles."""
    return sorted({file.stem for root in _roots() for file in (root / "profiles").glob("*.toml")})


def profile_file(name: str) -> Path:
    """The TOML file of a profile given by its name, or by its path."""
    if name.endswith(".toml") and Path(name).is_file():
        return Path(name).resolve()
    file = _first(f"profiles/{name}.toml")
    if file is None:
        raise SlotwiseError(f"there is no profile {name!r}", f"profiles: {', '.join(profiles())}; or give a .toml file")
    return file


def state_root() -> Path:
    """The folder of all run-time state: `$SLOTWISE_HOME`, else `.slotwise` in the current folder.

    Raises SlotwiseError where a later release has written it in a form that this one does not know.
    """
    root = Path(os.environ.get("SLOTWISE_HOME") or ".slotwise").resolve()
    try:
        text = (root / FORMAT_FILE).read_text("ascii", "replace").strip()
    except OSError:
        return root
    if text and text not in map(str, range(FORMAT + 1)):
        message = f"{root} was written by a later release of slotwise (its format is {text[:20]!r}, this one knows {FORMAT})"
        raise SlotwiseError(message, "use that release, or another folder: SLOTWISE_HOME=FOLDER")
    return root


def state_dir(name: str = "default") -> Path:
    """The folder for the state of the server `name`: pids, ports, keys, logs. It is created for its owner alone."""
    if not name or not all(c.isalnum() or c in "-_" for c in name):
        raise SlotwiseError(f"{name!r} cannot be a server's name", "use letters, digits, - and _")
    path = state_root() / name
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (path.parent / FORMAT_FILE).exists():
        (path.parent / FORMAT_FILE).write_text(f"{FORMAT}\n", "ascii")
    return path


def cache_dir() -> Path:
    """The folder for what is slow to make and safe to delete: trained weights, exported graphs."""
    path = state_root() / "cache"
    path.mkdir(parents=True, exist_ok=True)
    return path


def enter() -> None:
    """Say where things will be made, in a folder that holds nothing of slotwise yet; on a terminal a person is asked first.

    Raises SlotwiseError for a no.
    """
    own = [state_root(), *map(Path, ("model_store", "models", "profiles"))]
    if any(path.exists() for path in own):
        return
    console.say(f"{Path.cwd()} is no project yet: .slotwise/ and model_store/ are made there")
    if sys.stdin.isatty() and not typer.confirm("go on?", err=True):
        raise SlotwiseError("nothing was made", "`slotwise --home FOLDER ...` works in that project folder")


def model_store() -> Path:
    """The folder that archives are built in and served from."""
    path = Path("model_store").resolve()
    path.mkdir(exist_ok=True)
    return path
