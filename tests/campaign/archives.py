"""Archives that nobody should be sent, through inspect and extract, and fewer through guard, export and build.

An archive is refused in one line with a hint, or taken for exactly what it is: as its directory, a reader from front to back
(Java) and what is unpacked all say. Nothing is written anywhere else, and a whole archive among the others is always taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from zipfile import ZipFile

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.build import build
from slotwise.archive.guarding.guarded import guard
from slotwise.archive.inspection import extract, inspect
from slotwise.archive.packaging import MANIFEST
from slotwise.archive.store import archive_file
from slotwise.archive.triton.repository import export
from slotwise.bench.bodies import examples
from slotwise.commands import archive as commands
from slotwise.deploy.deploy import of_model
from slotwise.errors import SlotwiseError
from slotwise.profiles.profile import load_profile
from tests.campaign import front_to_back
from tests.campaign.archive_faults import FAULTS, Files, digested, zipped
from tests.campaign.cases import Case, Part
from tests.campaign.hostile_values import mutated
from tests.campaign.tally import Tally

HANDLER = b"def handle(data, context):\n    return data and [b'1'] * len(data)\n"
TOML = 'name = "toy"\nversion = "1.0"\nhandler = "handler.py"\nfiles = ["data.txt"]\nexamples = ["one.txt"]\n'
MOST_MEMORY = 4 << 30
OUTPUT = io.StringIO()  # one for all cases: click never lets go of a stream that it has written to
SELDOM, SELDOM_BUILT = 100, 20  # every 100th case is built, guarded and exported; every 20th is of a whole archive of ours


@dataclass(frozen=True)
class Bases:
    """What the archives are made from. work: where everything may be written."""

    work: Path
    small: Files
    theirs: Files
    legacy: Files
    built: Files

    @classmethod
    def made(cls, work: Path) -> Bases:
        """A small archive of ours, two of other tools, and one as `slotwise build` makes it."""
        model = {"modelName": "toy", "modelVersion": "1.0", "handler": "handler.py", "configFile": "model-config.yaml"}
        manifest = {"runtime": "python", "model": model, "archiverVersion": "0.12.0", "createdOn": "01/01/1980 00:00:00"}
        theirs = {MANIFEST: json.dumps(manifest).encode(), "handler.py": HANDLER, "model-config.yaml": b"batchSize: 4\n"}
        settings = {
            "model": {"name": "toy", "labels": ["a"], "options": {"onnx": {"batch": "any", "opset": 17, "input": "x"}}},
            "profiles": {"cpu": {"batch_size": 4}},
            "inputs": {"handler.py": "0"},
            "worker": 2,
        }
        small = {**theirs, "slotwise.json": json.dumps(settings).encode(), "data.txt": b"data", "examples/one.txt": b"1"}
        about = {"Engine": {"MXNet": 1.2}, "Model": {"Model-Name": "toy", "Service": "handler.py", "Signature": "s.json"}}
        legacy = {"MANIFEST.json": json.dumps(about).encode(), "handler.py": HANDLER, "s.json": b"{}"}
        with ZipFile(build(model_folder(work / "model"), work / "store")) as source:
            built = {name: source.read(name) for name in source.namelist()}
        return cls(work, digested(small), theirs, legacy, built)

    def choice(self, draw: Random, i: int) -> Files:
        """One of them. One of ours that can be exported only seldom: it has a hundred files."""
        if i % SELDOM_BUILT == 0:
            return self.built
        return draw.choice((self.small, self.small, self.theirs, self.legacy))


def model_folder(folder: Path, **texts: str | bytes) -> Path:
    """A model's folder that builds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in {"model.toml": TOML, "handler.py": HANDLER, "data.txt": "data", "one.txt": "1", **texts}.items():
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


@contextlib.contextmanager
def start(work: Path, scale: float) -> Iterator[Case]:
    """Give what tries one case."""
    before = os.environ.get("SLOTWISE_HOME")
    os.environ["SLOTWISE_HOME"] = str(work / "home")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, limits[1]))  # a bomb is then a MemoryError, and no dead machine
    try:
        bases = Bases.made(work)
        yield lambda i, draw, tally: try_case(bases, i, draw, tally)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        os.environ.pop("SLOTWISE_HOME")
        if before is not None:
            os.environ["SLOTWISE_HOME"] = before


def try_case(bases: Bases, i: int, draw: Random, tally: Tally) -> None:
    """One hostile archive, and every tenth time a whole one."""
    box = bases.work / "box"
    shutil.rmtree(box, ignore_errors=True)
    box.mkdir()
    archive = box / "sent.mar"
    files = bases.choice(draw, i)
    if i % 10 == 1:
        tally.innocents += 1
        archive.write_bytes(zipped(list(files.items())))
        if _inspected(archive, tally) is None:
            tally.fail(i, "lost", "a whole archive was refused")
    archive.write_bytes(draw.choice(FAULTS)(draw, files))
    info = _inspected(archive, tally)
    if info is None:
        tally.refused += 1
    else:
        _check_same(archive, info, box, i, tally)
    if i % SELDOM == 0:
        _seldom(bases, archive, info, box, draw, tally)
    stray = sorted(str(path.relative_to(bases.work)) for path in bases.work.rglob("*evil*") if box / "out" not in path.parents)
    if stray:
        tally.fail(i, "wrong", f"{stray[0]} was written")


def _inspected(archive: Path, tally: Tally) -> ArchiveInfo | None:
    """What `slotwise inspect` says of it, as text and as JSON; None where it is refused as it should be."""
    tally.requests += 1
    with contextlib.suppress(SlotwiseError):
        archive_file(archive.parent, archive.stem, "1.0")  # what a build asks of an archive that is there
    with contextlib.suppress(SlotwiseError):
        examples(str(archive))
    try:
        info = inspect(archive, need_digests=False)
    except SlotwiseError as error:
        one_line(error)
        return None
    json.loads(_shown(archive, as_json=True))
    strange = [line for line in _shown(archive, as_json=False).split("\n") if not line.isprintable()]
    assert not strange, f"a line that no terminal should get: {strange[0]!r}"
    return info


def _shown(archive: Path, as_json: bool) -> str:
    """What `slotwise inspect` prints."""
    OUTPUT.seek(0)
    OUTPUT.truncate()
    with contextlib.redirect_stdout(OUTPUT):
        commands.inspect(str(archive), as_json=as_json)
    return OUTPUT.getvalue()


def one_line(error: SlotwiseError) -> None:
    """Raise AssertionError where an error is not one printable line and a hint."""
    assert error.hint, f"no hint: {error.message!r}"
    assert error.message.isprintable(), f"not one line: {error.message!r}"
    assert len(error.message) < 1000, f"{len(error.message)} characters: {error.message[:200]}"


def _check_same(archive: Path, info: ArchiveInfo, box: Path, i: int, tally: Tally) -> None:
    """Count it as wrong where inspect's listing, a reader from front to back, and what is unpacked do not agree."""
    listed = {entry.name: entry.sha256 for entry in info.entries if not entry.name.endswith("/")}
    try:
        front = front_to_back.read(archive.read_bytes())
    except ValueError as error:
        tally.fail(i, "wrong", f"taken, but nobody can read it from front to back: {error}")
        return
    streamed = {name: hashlib.sha256(data).hexdigest() for name, data in front if not name.endswith("/")}
    if streamed != listed or len(front) != len(info.entries):
        other = sorted(set(streamed.items()) ^ set(listed.items()))
        tally.fail(i, "wrong", f"a reader from front to back sees something else: {other[:2]}")
        return
    try:
        folder = extract(archive, box / "out", trusted=True)
    except SlotwiseError as error:
        one_line(error)
        return
    unpacked = {
        str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.rglob("*") if f.is_file()
    }
    if unpacked != listed:
        tally.fail(i, "wrong", f"unpacked is something else: {sorted(set(unpacked.items()) ^ set(listed.items()))[:2]}")


def _seldom(bases: Bases, archive: Path, info: ArchiveInfo | None, box: Path, draw: Random, tally: Tally) -> None:
    """Guard it, export it, and build a model whose description is damaged."""
    store = box / "store"
    with refusing(tally):
        guard(archive, store / "guarded.mar")
        inspect(store / "guarded.mar")
    with refusing(tally):
        if info is not None:
            export(info, of_model(info, load_profile("cpu", environ={}), {}, "triton"), box / "out" / "repository")
    with refusing(tally):
        lines = TOML.splitlines(keepends=True)
        text = mutated(
            draw, draw.choice((TOML.encode(), "".join(draw.sample(lines, len(lines))).encode() + b"[input]\nshape = [1]\n"))
        )
        toml = (
            text
            if draw.random() < 0.7
            else TOML.replace('"data.txt"', json.dumps(draw.choice(("../x", "/etc/passwd", "a//b", "")))).encode()
        )
        inspect(build(model_folder(box / "model", **{"model.toml": toml, "handler.py": mutated(draw, HANDLER)}), store))


@contextlib.contextmanager
def refusing(tally: Tally) -> Iterator[None]:
    """What is within may be refused in one line."""
    tally.requests += 1
    try:
        yield
    except SlotwiseError as error:
        one_line(error)
        tally.refused += 1


PART = Part(
    "archives",
    f"hostile archives through inspect and extract, every {SELDOM}th through guard, export and build",
    100_000,
    start,
)
