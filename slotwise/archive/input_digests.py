"""What an archive is built from: which files, and their digests.

The archive carries them, so that `serve` and `register` can tell what was changed since. What make.py makes is kept under a
digest of all that it can depend on: every file of the model's folder, its weights, and the code outside that folder.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.model_spec import ModelSpec, load_spec
from slotwise.worker.environment.digests import file_sha256

READ = ("*.py", "*.pt", "*.npz", "*.json", "calibration/*")  # what a make.py reads in its folder, besides what is named
DESCRIPTION = "model.toml"
CODE = ("zoo", "worker/inputs", "worker/engines")  # what make.py writes weights and graphs with
SERVING = {
    "profiles",
    "hedge",
    "top_k",
    "description",
    "version",
    "separable",
}  # keys that change nothing of what make.py makes


def input_digests(folder: Path, spec: ModelSpec) -> dict[str, str]:
    """The SHA-256 of every file that the archive of the model in `folder` is built from, by its path there.

    Raises SlotwiseError for a stage that has stages.
    """
    digests = {DESCRIPTION: hashlib.sha256(spec.model_dump_json().encode()).hexdigest()}
    if not spec.handler.endswith(".py"):
        digests[f"handlers/{spec.handler}.py"] = file_sha256(project.handler_file(spec.handler))
    for stage in spec.stages:
        own = stage_folder(folder, stage.model)
        described = load_spec(own)
        if described.stages:
            raise SlotwiseError(
                f"{spec.name}: the stage {stage.name} has stages of its own", "write all of them into one model.toml"
            )
        digests |= {f"stages/{stage.name}/{path}": sha256 for path, sha256 in input_digests(own, described).items()}
    return digests | {file.relative_to(folder).as_posix(): file_sha256(file) for file in _files(folder, spec)}


def stage_folder(folder: Path, model: str) -> Path:
    """The folder of a stage's model: one below or beside `folder`, or a known model's. Raises SlotwiseError."""
    beside = (folder / model).resolve()
    return beside if (beside / "model.toml").is_file() else project.model_folder(model)


def changed_input(built: dict[str, str], folder: Path, spec: ModelSpec) -> str:
    """The first input that is not what the archive was built from, "" where there is none or the archive does not tell."""
    now = input_digests(folder, spec) if built else {}
    return next((path for path in sorted({*built, *now}) if built.get(path) != now.get(path)), "")


def made_key(folder: Path, spec: ModelSpec, weights: str | None, made: Mapping[str, str]) -> str:
    """A digest of all that make.py's result depends on; what only concerns serving (batch sizes, say) is left out.

    made: the digests of what make.py itself has left in the folder; files that are as it left them are no input.
    Nor are the versions of engines in it: what was made with others is completed (archive/make_script.py), not made anew.
    """
    digest = hashlib.sha256(spec.model_dump_json(exclude=SERVING).encode())
    digests = input_digests(folder, spec)
    others = {name: file for file in _whole(folder) if (name := file.relative_to(folder).as_posix()) not in digests}
    digests |= {name: file_sha256(file) for name, file in others.items()}
    for name, sha256 in sorted(digests.items()):
        if name != DESCRIPTION and made.get(name) != sha256:
            digest.update(f"\n{name} {sha256}".encode())
    code = [file for room in CODE for file in sorted((project.PACKAGE / room).glob("*.py"))]
    for file in [*code, *_scripts_of_others(folder)]:
        digest.update(f"\n{file.parent.name}/{file.name} {file_sha256(file)}".encode())
    digest.update(f"\nweights {weights}\n".encode())
    path = Path(weights or "")
    for file in [path] if path.is_file() else _below(path) if weights else []:
        digest.update(f"{file} {file_sha256(file)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def _files(folder: Path, spec: ModelSpec) -> Iterator[Path]:
    """Every file of the folder that counts, once."""
    found = {path for pattern in READ for path in folder.glob(pattern)}
    found |= {folder / path for path in [*spec.content(), *spec.examples, *([spec.expected] if spec.expected else [])]}
    for path in sorted(found):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                yield file


def _whole(folder: Path) -> Iterator[Path]:
    """Every file of a model's folder that its make.py may read: no hidden one, no bytecode, and not what a build writes."""
    for file in _below(folder):
        if not file.name.endswith((".mar", ".report.json")):
            yield file


def _below(folder: Path) -> Iterator[Path]:
    """Every file below a folder, also by way of links, and no folder twice; hidden ones and installed packages are left out."""
    state, seen = os.path.realpath(project.state_root()), set[str]()
    for path, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(path)
        if real in seen or real == state or "pyvenv.cfg" in names:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        yield from (file for name in sorted(names) if not name.startswith(".") and (file := Path(path, name)).is_file())


def _scripts_of_others(folder: Path) -> Iterator[Path]:
    """The scripts of every other model that this one's scripts name."""
    text = "\n".join(file.read_text("utf-8", "replace") for file in sorted(folder.glob("*.py")))
    for name, other in project.models().items():
        if other.resolve() != folder.resolve() and re.search(rf"[\"']{re.escape(name)}[\"']", text):
            yield from sorted(other.glob("*.py"))
