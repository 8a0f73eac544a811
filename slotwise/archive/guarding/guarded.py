"""Put a guard around anybody's archive: every file stays what it is, and one request can no longer cost the others theirs.

theirs, all of it                  byte for byte, but for the manifest's `handler` (and `modelName`, where another is wished)
_slotwise_guard/__init__.py        the new handler
_slotwise_guard/guard.json         the handler that theirs was, the terms of the guard, and what is proven of theirs
_slotwise_guard/**                 the part of slotwise.worker that a guard needs, under this name: theirs may bring a slotwise
MAR-INF/DIGESTS.json               the SHA-256 of every file
"""

from __future__ import annotations

import ast
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slotwise import __version__
from slotwise.archive.archive_info import ArchiveInfo, check_name
from slotwise.archive.guarding.foreign import GUARD, TERMS, asked_once, objection
from slotwise.archive.guarding.guard_proof import Example, GuardProof, prove_guarded
from slotwise.archive.inspection import manifest_of, opened
from slotwise.archive.packaging import DIGESTS, MANIFEST, WORKER, FileContent, in_archive, in_text, write_zip
from slotwise.archive.zip_safety import read_small
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.files.disk import written_whole
from slotwise.interrupts import held

OURS, BELOW = "slotwise.worker", project.PACKAGE / "worker"
ENTRIES = (  # on TorchServe and MMS, where there is no server, and on Triton
    "slotwise.worker.guard.guarded_handler",
    "slotwise.worker.hosts.framed",
    "slotwise.worker.hosts.local",
    "slotwise.worker.hosts.triton",
)
INIT = f'''"""A guard around the handler that guard.json names. Made by `slotwise guard`; see docs/guard.md of Slotwise."""

import sys
from pathlib import Path

if sys.version_info < (3, 11):
    raise ValueError("the guard around this archive needs Python 3.11")

from {GUARD}.guard.guarded_handler import GuardedHandler

handle = GuardedHandler(Path(__file__).with_name("guard.json")).handle
'''


def guard(
    path: Path,
    out: Path | None = None,
    *,
    name: str | None = None,
    audit: float = 0.0,
    bad_input: Sequence[str] = (),
    examples: Sequence[Example] = (),
    bare: bool = False,
    sequences: bool = False,
) -> Path:
    """Write the guarded archive (THEIRS-guarded.mar by default) and return its path; it appears at once or not.

    name: another model name. audit: the share of requests that are answered again, alone. bad_input: further exceptions, as
    "Name" or "module.Name", that tell of bad input. examples: bodies to prove with that no answer depends on its batch-mates;
    where one does, the guarded handler gets one request at a time. bare: guard nothing: theirs is called once a
    batch, which fails as a whole. sequences: where it is served, the requests of a sequence stay in one worker. Raises
    SlotwiseError, with the reason, for what cannot be guarded or audited, and where a handler to be proven does not start here.
    """
    if not path.is_file():
        what = f"{path} is a folder, not a .mar" if path.is_dir() else f"there is no archive {path}"
        raise SlotwiseError(what, "`slotwise guard THEIRS.mar` takes a .mar file")
    _check_words(name, bad_input)
    target = out or path.with_name(f"{path.stem}-guarded.mar")
    _check_paths(path, target)
    if out is None:
        check_replaced(target)
    with opened(path) as source:
        manifest, legacy = manifest_of(path, source), MANIFEST not in source.namelist()
        _check(path, source, manifest, bare, sequences)
        once = asked_once(source, manifest)
        if audit and (bare or once):
            raise SlotwiseError(f"{path.name} cannot be audited: its handler must not be asked twice", "leave out the audit")
        theirs = str(manifest["model"]["handler"])
        terms = {
            "format": 1,
            "worker": WORKER,
            "slotwise": __version__,
            "handler": theirs,
            "legacy": legacy,
            "bad_input": sorted(bad_input),
            **({"bare": True} if bare else {}),
            **({"once": once} if once else {}),
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(target) as unfinished:
            proof = GuardProof()
            if examples:
                write_zip(_contents(source, manifest, name, {**terms, "audit": 0.0}), unfinished)
                proof = prove_guarded(unfinished, examples)
            decided = {**terms, "audit": audit, "together": proof.together, "proof": proof.to_json()}
            with held():
                write_zip(_contents(source, manifest, name, decided), unfinished)
    return target


def proof_of(path: Path) -> GuardProof | None:
    """What is known of a guarded archive; None where it is no guarded one."""
    with opened(path) as source:
        if TERMS not in source.namelist():
            return None
        return GuardProof.from_terms(json.loads(read_small(source, TERMS)))


def check_replaced(target: Path) -> None:
    """Raise SlotwiseError where a guarded archive would take the place of what is none."""
    if target.exists() and proof_of(target) is None:
        raise SlotwiseError(f"{target} is there already, and no guarded archive", "give it, or yours, another name")


def guards(guarded: ArchiveInfo, theirs: ArchiveInfo) -> bool:
    """Whether an archive is `theirs` with a guard around it: the same files, whatever its terms and its model's name are."""
    with opened(guarded.path) as source:
        if TERMS not in source.namelist():
            return False
        terms = json.loads(read_small(source, TERMS))
    return not terms.get("bare") and terms["handler"] == theirs.handler and _theirs_of(guarded) == _theirs_of(theirs)


def _theirs_of(info: ArchiveInfo) -> tuple[dict[str, str], dict[str, Any]]:
    """The digests of the files that a guard leaves as they are, and what it leaves of the manifest."""
    files = {entry.name: entry.sha256 for entry in info.entries if not entry.name.endswith("/")}
    kept = {
        name: sha256 for name, sha256 in files.items() if name not in (MANIFEST, DIGESTS) and not name.startswith(f"{GUARD}/")
    }
    model = {key: value for key, value in info.manifest["model"].items() if key not in ("handler", "modelName")}
    return kept, {**info.manifest, "model": model}


def _contents(
    source: zipfile.ZipFile, manifest: dict[str, Any], name: str | None, terms: dict[str, Any]
) -> dict[str, FileContent]:
    """Everything of theirs, the guard and its terms, and the manifest that names it."""
    model = {**manifest["model"], "handler": f"{GUARD}:handle"} | ({"modelName": name} if name else {})
    added = {MANIFEST: json.dumps({**manifest, "model": model}, indent=2)} | guard_code()
    added[TERMS] = json.dumps(terms, indent=2, sort_keys=True)
    return in_archive(source) | {file: in_text(text) for file, text in added.items()}


def _check_words(name: str | None, bad_input: Sequence[str]) -> None:
    if name is not None:
        check_name(name)
    for kind in bad_input:
        if not all(part.isidentifier() for part in kind.split(".")):
            raise SlotwiseError(f"{kind!r:.100} is no exception's name", "write NAME or MODULE.NAME")


def _check_paths(path: Path, target: Path) -> None:
    if target.resolve() == path.resolve():
        raise SlotwiseError(f"{path.name} would be overwritten by its guarded copy", "name another file with --out")
    if path.is_dir() or path.name.endswith((".tar.gz", ".tgz")):
        kind = "folder" if path.is_dir() else "tarball"
        raise SlotwiseError(
            f"{path.name} is a {kind}, not a .mar", "pack it with torch-model-archiver --archive-format default"
        )
    if path.suffix == ".war":
        raise SlotwiseError(f"{path.name} is a workflow archive", "guard the archives of its models, one by one")


def _check(path: Path, source: zipfile.ZipFile, manifest: dict[str, Any], bare: bool, sequences: bool) -> None:
    """Raise SlotwiseError where a guard would be of no use, or would do harm."""
    names = source.namelist()
    if any(file.startswith(f"{GUARD}/") for file in names):
        raise SlotwiseError(f"{path.name} is guarded already", "guard the archive that it was made from")
    if why := objection(source, manifest, bare, sequences):
        hint = "docs/guard.md has what runs" if bare else "a guard calls a handler again for parts of a batch"
        raise SlotwiseError(f"{path.name} cannot be {'served here' if bare else 'guarded'}: {why}", hint)


def guard_code() -> dict[str, str]:
    """The guard's modules of slotwise.worker and all that they import of it, under the guard's name."""
    waiting, code = [*ENTRIES], {f"{GUARD}/__init__.py": INIT}
    while waiting:
        name = waiting.pop()
        path = Path(*name.split(".")[2:])
        path = path / "__init__.py" if (BELOW / path).is_dir() else path.with_suffix(".py")
        target = f"{GUARD}/{path.as_posix()}"
        if target in code:
            continue
        code[target], needed = _renamed((BELOW / path).read_text("utf-8"))
        waiting += needed
        if path.parent.name and path.name != "__init__.py":
            waiting.append(name.rpartition(".")[0])
    return code


def _renamed(text: str) -> tuple[str, list[str]]:
    """A module that imports the guard's modules where it imported those of slotwise.worker, and the names of these.

    Imports within functions count, too. Nothing else changes: neither a text nor a comment.
    """
    lines, needed = text.splitlines(keepends=True), []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(OURS):
            line, column = lines[node.lineno - 1], node.col_offset
            lines[node.lineno - 1] = line[:column] + line[column:].replace(OURS, GUARD, 1)
            is_folder = (BELOW / Path(*str(node.module).split(".")[2:])).is_dir()
            needed += [f"{node.module}.{alias.name}" for alias in node.names] if is_folder else [str(node.module)]
    return "".join(lines), needed
