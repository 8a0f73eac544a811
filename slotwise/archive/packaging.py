"""Pack a model's folder into one .mar: with torch-model-archiver, then written so that equal inputs give equal bytes.

HANDLER.py  weights  files         what model.toml names
examples/                          bodies for `slotwise check`
slotwise/__init__.py  worker/**    the code that runs in the server's worker; it wins over an installed slotwise
slotwise.json                      the model's description, and the worker's settings in every profile
MAR-INF/MANIFEST.json              what both servers read
MAR-INF/DIGESTS.json               the SHA-256 of every other file
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from slotwise import __version__
from slotwise.archive.network.network_output import own_output
from slotwise.errors import SlotwiseError, missing_package
from slotwise.files import project
from slotwise.files.disk import written_whole
from slotwise.interrupts import held, let_through
from slotwise.model_spec import ModelSpec
from slotwise.profiles.profile import load_profile
from slotwise.worker.labels import CLASSIFIERS

CREATED_ON = "01/01/1980 00:00:00"  # the archiver would stamp the time; zip's own epoch keeps two builds identical
EPOCH = (1980, 1, 1, 0, 0, 0)
DIGESTS = "MAR-INF/DIGESTS.json"
MANIFEST = "MAR-INF/MANIFEST.json"
# What the worker code can do: 1 serves TorchServe and MMS; 2 also answers without a server; 3 has messages with ids then, on
# descriptors of its own (worker/hosts/messages.py).
WORKER, WITHOUT_SERVER = 3, 2
RESERVED = ("MAR-INF", "slotwise", "slotwise.json", "examples")


def pack(
    spec: ModelSpec,
    sources: list[Path],
    archive: Path,
    inputs: Mapping[str, str],
    prove: Callable[[Path, ModelSpec], None] = lambda folder, spec: None,
) -> None:
    """Write `archive`; each file comes from the first of `sources` that has it. The archive appears at once or not at all.

    inputs: the digests of what it is built from, for slotwise.json. prove(folder, spec): adds to the folder of the archive's
    files what is known of them; it may raise.
    """
    with held(), tempfile.TemporaryDirectory(prefix="slotwise-build-") as name:  # it takes a second or two
        work = Path(name)
        stage = work / "stage"
        handler = _stage(spec, sources, stage, inputs)
        laid_out = _names(stage)
        packed = _run_archiver(spec, handler, work)
        if lost := sorted(laid_out - _names(packed)):  # it leaves out a link that leads nowhere
            raise SlotwiseError(f"model {spec.name}: {lost[0]} was gone when it was packed", "build it again")
        _fix_manifest(packed / MANIFEST)
        before = _states(packed)
        with let_through():  # a large network takes a minute
            prove(packed, spec)
        _as_before(packed, before, spec.name)
        with written_whole(archive) as unfinished:
            write_zip(in_folder(packed), unfinished)


def _names(folder: Path) -> set[str]:
    """Every file below a folder, by way of links, too."""
    files = (Path(path, name) for path, _, names in os.walk(folder, followlinks=True) for name in names)
    return {file.relative_to(folder).as_posix() for file in files}


def _states(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of every file but the one that a proof writes."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != "slotwise.json")
    return {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}


def _as_before(folder: Path, before: Mapping[Path, tuple[int, int]], name: str) -> None:
    """Remove what the handler has written there when it was tried. Raises SlotwiseError where it has changed a file."""
    after = _states(folder)
    if changed := [file for file in before if after.get(file) != before[file]]:
        place = changed[0].relative_to(folder)
        raise SlotwiseError(f"{name}: its handler changes {place} of its own archive", "let it write to a temporary folder")
    for file in after.keys() - before.keys():
        file.unlink()


def worker_code() -> dict[str, Path]:
    """The files of the worker, by their names in an archive."""
    code = [project.PACKAGE / "__init__.py", *sorted((project.PACKAGE / "worker").rglob("*.py"))]
    return {f"slotwise/{file.relative_to(project.PACKAGE)}": file for file in code}


def _stage(spec: ModelSpec, sources: list[Path], stage: Path, inputs: Mapping[str, str]) -> Path:
    """Lay out the archive's content as links below `stage`. Returns the handler's file."""
    named = {path: _find(path, sources) for path in spec.content()}
    named |= {f"examples/{Path(path).name}": _find(path, sources) for path in spec.examples}
    own = spec.handler.endswith(".py")
    handler = _find(spec.handler, sources) if own else project.handler_file(spec.handler)
    for path in [*spec.content(), handler.name]:
        if Path(path).parts[0] in RESERVED:
            raise SlotwiseError(
                f"model {spec.name}: a file cannot be called {path}", f"{Path(path).parts[0]} is slotwise's own"
            )
    named |= worker_code()
    for path, source in named.items():
        target = stage / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source.resolve())
    (stage / "slotwise.json").write_text(
        json.dumps({**_settings(spec), **_scores(spec, sources), "inputs": dict(inputs)}, indent=2, sort_keys=True), "utf-8"
    )
    return handler


def _find(path: str, sources: list[Path]) -> Path:
    file = next((source / path for source in sources if (source / path).exists()), None)
    if file is None:
        raise SlotwiseError(f"{path} is named in model.toml but is not in {sources[-1]}", "add the file or correct its name")
    return file


def _settings(spec: ModelSpec) -> dict[str, Any]:
    """What the worker reads: the description, and for every profile its worker-side keys with this model's own values."""
    model = spec.model_dump(mode="json", exclude_none=True)
    return {"format": 1, "worker": WORKER, "slotwise": __version__, "model": model, "profiles": _profiles(spec)}


def _scores(spec: ModelSpec, sources: list[Path]) -> dict[str, Any]:
    """What the front end has to know of a given classifier that gives every score to who asks: how the graph calls them."""
    return {"scores": {"output": own_output(spec, sources)}} if spec.handler in CLASSIFIERS else {}


def _profiles(spec: ModelSpec) -> dict[str, dict[str, Any]]:
    known = project.profiles()
    unknown = sorted(set(spec.profiles) - set(known))
    if unknown and known:
        raise SlotwiseError(f"model {spec.name}: [profiles.{unknown[0]}] is not a profile", f"profiles: {', '.join(known)}")
    settings: dict[str, dict[str, Any]] = {}
    for name in known:
        try:
            settings[name] = load_profile(name, environ={}, cores=0).for_model(spec.profiles.get(name, {})).worker()
        except SlotwiseError as error:
            raise SlotwiseError(f"model {spec.name}: {error.message}", error.hint) from error
    return settings


def _run_archiver(spec: ModelSpec, handler: Path, work: Path) -> Path:
    """Package with torch-model-archiver, into a folder. It deletes $TMPDIR/NAME first, so it gets a TMPDIR of its own."""
    (work / "tmp").mkdir()
    (work / "out").mkdir()
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--model-name", spec.name, "--version", spec.version]
    command += ["--handler", str(handler), "--extra-files", "stage", "--export-path", "out", "--archive-format", "no-archive"]
    environ = {**os.environ, "TMPDIR": str(work / "tmp")}
    done = subprocess.run(command, cwd=work, env=environ, capture_output=True, text=True, start_new_session=True)
    if "No module named" in done.stderr and "model_archiver" in done.stderr:
        raise missing_package("model_archiver", "building")
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise SlotwiseError(f"torch-model-archiver failed: {lines[-1] if lines else 'no output'}", "see its message")
    return work / "out" / spec.name


def _fix_manifest(path: Path) -> None:
    manifest = {**json.loads(path.read_text("utf-8")), "createdOn": CREATED_ON}
    path.write_text(json.dumps(manifest, indent=2, sort_keys=True), "utf-8")


@dataclass(frozen=True)
class FileContent:
    """What one file of an archive holds. open: a stream of its bytes."""

    size_bytes: int
    open: Callable[[], IO[bytes]]

    def sha256(self) -> str:
        """The digest of it all."""
        with self.open() as source:
            return hashlib.sha256(source.read()).hexdigest()


def in_folder(folder: Path) -> dict[str, FileContent]:
    """Every file of a folder, by its name in an archive."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): in_file(file) for file in files}


def in_file(file: Path) -> FileContent:
    """What a file holds."""
    return FileContent(file.stat().st_size, partial(_stream, file))


def in_archive(source: zipfile.ZipFile) -> dict[str, FileContent]:
    """Every file of an open archive but its digests, which are written anew."""
    items = [item for item in source.infolist() if not item.is_dir() and item.filename != DIGESTS]
    return {item.filename: FileContent(item.file_size, partial(source.open, item)) for item in items}


def in_text(text: str) -> FileContent:
    """A text as a file's content."""
    return FileContent(len(text.encode()), partial(io.BytesIO, text.encode()))


def _stream(file: Path) -> IO[bytes]:
    return file.open("rb")


def write_zip(contents: Mapping[str, FileContent], archive: Path) -> None:
    """Write the files sorted, without dates and uncompressed, and the digests behind them.

    Weights hardly compress, and each version of zlib packs differently.
    """
    digests: dict[str, str] = {}
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as target:
        for name, content in sorted(contents.items()):
            digest = hashlib.sha256()
            with content.open() as source, target.open(_entry(name, content.size_bytes), "w") as entry:
                while block := source.read(1 << 20):
                    digest.update(block)
                    entry.write(block)
            digests[name] = digest.hexdigest()
        listed = json.dumps({"algorithm": "sha256", "files": digests}, indent=2, sort_keys=True)
        target.writestr(_entry(DIGESTS), listed)


def _entry(name: str, size_bytes: int = 0) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.create_system = 3  # Unix, wherever it is built
    entry.external_attr = 0o100644 << 16
    entry.file_size = size_bytes
    return entry
