"""Read a folder with a TorchServe deployment, say what becomes of it here, and write a copy that Slotwise serves.

config.properties      stays, but for keys that cannot be had; each is a comment then
archives               get their guards; what cannot be guarded stays as it is, and is said
Dockerfile and others  name another image, or another word (around.py)
everything else        is copied, links to the deployment's own folders as links
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path

from slotwise.archive.packaging import MANIFEST
from slotwise.backends.management.models import ApiError
from slotwise.drop_in.archive_source import SUFFIXES, DeployedArchives
from slotwise.drop_in.configuration import Configuration, read_properties
from slotwise.drop_in.known_keys import KEYS
from slotwise.drop_in.model_table import REFUSED
from slotwise.drop_in.snapshots import models_of, newest
from slotwise.errors import SlotwiseError
from slotwise.files.disk import whole_folder
from slotwise.migrate.around import Around
from slotwise.migrate.findings import Finding, Verdict, need_new

LEFT_BEHIND = {"logs", ".git", "__pycache__", "key_file.json"}  # a server's own, or nobody's
MOST_TEXT_BYTES = 1 << 18  # of a file that is read to be changed
MOST_FILES = 20_000
MOST_NAMED = 20
KEPT = ("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay")
ANEW = "register in the copy what it is to have, too"
NEEDED = (*SUFFIXES, ".war", ".properties")


class Deployment:
    """One deployment. image: the name under which your registry has what Dockerfile.torchserve builds."""

    def __init__(self, folder: Path, image: str) -> None:
        self.folder, self.around = folder, Around(image)
        self.folders, self.files, self.links, self.left = _files(folder)
        self.stores: set[str] = set()  # that a configuration names
        self.findings: list[Finding] = []
        self.changed: dict[Path, bytes] = {}  # what is written otherwise than it was
        self.guarded: dict[Path, Path] = {}  # and archives
        self.configuration: Path | None = None
        self.keys: dict[str, str] = {}  # of that one
        self.with_archives: list[Path] = []  # folders

    def read(self, work: Path) -> list[Finding]:
        """Look at everything. work: a folder for archives that get a guard. Raises SlotwiseError where there is nothing."""
        for file in sorted(self.files, key=lambda one: one.name != "config.properties"):  # of several the line has the first
            name = self._name(file)
            if file.suffix == ".war":
                self._say(name, "cannot", "workflows are not there: ask two models one after the other")
            elif file.name.endswith(SUFFIXES) or file.is_dir():
                self._archive(file, name, work)
            elif file.suffix == ".properties":
                self._configuration(file, name)
            elif (text := _text(file)) is not None:
                found, changed = self.around.read(file.name, text)
                self.findings += [Finding(name, *said) for said in found]
                if changed != text:
                    self.changed[file] = changed.encode()
        if not self.findings:
            raise SlotwiseError(
                f"{self.folder} has nothing of TorchServe's or SageMaker's",
                "name a folder with a config.properties, archives or a Dockerfile, or a model.tar.gz",
            )
        for place in dict.fromkeys([self.folder, *(file.parent for file in self.files)]):
            if snapshot := newest(place / "logs" / "config"):
                self._say(self._name(snapshot), "note", _restored(snapshot))
        served = self._store() or self.folder / self.keys.get("model_store", "").strip()
        if others := [folder for folder in self.with_archives if folder.resolve() != served.resolve()]:
            about = f"the line serves the archives of {self._name(served)}, not these"
            self._say(", ".join(map(self._name, others)), "note", about)
        for link in self.left:
            if not link.is_symlink():
                self._say(self._name(link), "note", "neither a file nor a folder: it is not copied")
                continue
            needed = os.path.abspath(link) in self.stores or _may_be_needed(link)
            what = ", and what the deployment needs may lie behind it: put that into the folder" if needed else ""
            about = f"a link that leads out of the folder, or nowhere: it is not copied{what}"
            self._say(self._name(link), "cannot" if needed else "note", about)
        return self.findings

    def write(self, out: Path) -> None:
        """Write the copy. Raises SlotwiseError where something is there already."""
        new = [] if out.exists() else [self.folder]  # one that was there keeps its mode
        for folder in (self.folder, *self.folders):
            (out / folder.relative_to(self.folder)).mkdir(0o700, parents=True, exist_ok=True)
        for file in self.files:
            target = out / file.relative_to(self.folder)
            if file in self.changed:
                target.write_bytes(self.changed[file])
                shutil.copymode(file, target)
            elif file.is_dir():
                shutil.copytree(file, target, symlinks=True, ignore=_specials)
            else:
                shutil.copy2(self.guarded.get(file, file), target)
        for link, named in self.links.items():
            made = out / link.relative_to(self.folder)
            (out / named).mkdir(parents=True, exist_ok=True)
            made.symlink_to(os.path.relpath(out / named, made.parent), target_is_directory=True)
        for folder in (*reversed(self.folders), *new):  # at last: one may be closed to writing
            shutil.copystat(folder, out / folder.relative_to(self.folder))

    def command(self, out: Path) -> str:
        """The line that starts the copy on this machine."""
        words = ["slotwise torchserve --start"]
        words += [f"--ts-config {shlex.quote(self._name(self.configuration))}"] if self.configuration else []
        if store := self._store():
            words += [f"--model-store {shlex.quote(self._name(store))}"]
        if self.with_archives and not self.keys.keys() & {"load_models", "model_snapshot"}:
            words += ["--models all"]
        return f"cd {shlex.quote(str(out))} && {' '.join(words)}"

    def _store(self) -> Path | None:
        """The folder for --model-store, which wins over the file's model_store: None where that one is in the copy, too."""
        named = self.keys.get("model_store", "").strip()
        own = Path(os.path.realpath(self.folder / named))
        if named and own.is_dir() and own.is_relative_to(root := self.folder.resolve()):
            return self.folder / own.relative_to(root) if os.path.isabs(named) else None
        alike = [folder for folder in self.with_archives if folder.name == Path(named).name]
        return next(iter([*alike, *self.with_archives]), None)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _say(self, what: str, verdict: Verdict, about: str) -> None:
        self.findings.append(Finding(what, verdict, about))

    def _archive(self, path: Path, name: str, work: Path) -> None:
        if path.parent not in self.with_archives:
            self.with_archives.append(path.parent)
        folder = work / str(len(self.findings))
        store = {"model_store": str(path.parent)}
        try:
            info = DeployedArchives(Configuration(store), folder).served(path.name)
            about = "gets a guard: a bad request costs only its sender"
        except (SlotwiseError, ApiError) as error:
            try:
                info = DeployedArchives(Configuration(store, guards=False), folder).served(path.name)
            except (SlotwiseError, ApiError):
                return self._say(name, "cannot", _reason(error))
            about = f"{_reason(error)}; with --no-guard it is called as TorchServe calls it, and a batch fails as a whole"
            return self._say(name, "note", about)
        if unknown := [f"{key} ({why})" for key, why in REFUSED.items() if info.config.get(key)]:
            return self._say(name, "cannot", f"its model-config.yaml has {', '.join(unknown)}")
        if info.path.resolve() == path.resolve():
            about = "is one of ours"
        elif path.name.endswith(".mar"):
            self.guarded[path] = info.path
        else:
            about = "stays as it is, and gets its guard when it is registered"
        return self._say(name, "works", about)

    def _configuration(self, file: Path, name: str) -> None:
        try:
            keys = read_properties(file)
        except SlotwiseError:
            return
        if not keys.keys() & KEYS.keys():
            return
        if self.configuration is None:
            self.configuration, self.keys = file, keys
        else:
            self._say(name, "note", f"the line starts with {self._name(self.configuration)}, not with this one")
        self.stores |= {os.path.abspath(self.folder / keys[key]) for key in ("model_store", "workflow_store") if key in keys}
        uses = {key: KEYS[key].use if key in KEYS else "unknown" for key in keys}
        used = sum(use == "used" for use in uses.values())
        self._say(name, "works", f"{used} of its {len(keys)} keys mean the same here")
        refused = set()
        for key, use in uses.items():
            if use == "unknown":
                self._say(f"{name}: {key}", "note", "TorchServe does not know it, and nor does this")
            elif use == "no meaning":
                self._say(f"{name}: {key}", "note", KEYS[key].note)
            elif use == "refused" and keys[key].strip().lower() != "false":
                self._say(f"{name}: {key}", "cannot", KEYS[key].note)
                refused.add(key)
        if refused:
            text = file.read_bytes().decode("latin-1")  # as Java reads it
            self.changed[file] = _commented(text, refused).encode("latin-1")
        kept = {key: value for key, value in keys.items() if uses[key] == "used" and "$$" not in value}
        try:
            Configuration({**kept, "model_store": str(file.parent)}).check()
        except SlotwiseError as error:
            self._say(name, "cannot", error.message)


def migrate(folder: Path, out: Path | None, image: str) -> tuple[list[Finding], str]:
    """What becomes of a deployment, and the line that starts its copy; the copy is written into `out`, where one is named.

    Raises SlotwiseError where there is nothing to migrate, or `out` is not empty.
    """
    need_new(out, folder)
    deployment = Deployment(folder, image)
    with tempfile.TemporaryDirectory(prefix="slotwise-migrate-") as work:
        findings = deployment.read(Path(work))
        if out:
            with whole_folder(out):
                deployment.write(out)
    return findings, deployment.command(out or folder)


def _files(folder: Path) -> tuple[list[Path], list[Path], dict[Path, Path], list[Path]]:
    """The folders below a folder; every file, and each folder that is an archive; links to folders of it, and what each names.

    And the rest: links that lead out of it, or nowhere, and what is neither a file nor a folder.
    """
    below: list[Path] = []
    inside: list[Path] = []
    links: dict[Path, Path] = {}
    rest: list[Path] = []
    root = folder.resolve()
    for place, folders, files in os.walk(folder):
        here = Path(place)
        archives = [name for name in folders if (here / name / MANIFEST).is_file()]
        linked = [name for name in folders if (here / name).is_symlink() and name not in archives]
        folders[:] = sorted(name for name in folders if name not in {*LEFT_BEHIND, *archives, *linked})
        below += [here / name for name in folders]
        for name in sorted([*archives, *linked, *files]):
            if name in LEFT_BEHIND:
                continue
            named = Path(os.path.realpath(here / name))
            if not named.is_relative_to(root) or not (named.is_file() or named.is_dir()):
                rest.append(here / name)
            elif name in linked:
                links[here / name] = named.relative_to(root)
            else:
                inside.append(here / name)
            if len(inside) > MOST_FILES:
                raise SlotwiseError(f"{folder} has more than {MOST_FILES} files", "name the deployment's own folder")
    return below, inside, links, rest


def _specials(place: str, names: list[str]) -> list[str]:
    """What is neither a file nor a folder nor a link: a pipe would be read for ever."""
    return [name for name in names if not (path := Path(place, name)).is_symlink() and not path.is_file() and not path.is_dir()]


def _may_be_needed(link: Path) -> bool:
    """Whether an archive, or a configuration, is behind a link, or may be among more files than are looked at."""
    if not link.is_dir():
        return link.name.endswith(NEEDED) or os.path.realpath(link).endswith(NEEDED)
    seen = 0
    for place, folders, files in os.walk(link):
        seen += len(folders) + len(files)
        if Path(place, MANIFEST).is_file() or any(file.endswith(NEEDED) for file in files) or seen > MOST_FILES:
            return True
    return False


def _text(file: Path) -> str | None:
    """A file's text; None where it is none, or too much to be one that is changed."""
    if not file.is_file() or file.stat().st_size > MOST_TEXT_BYTES:
        return None
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _commented(text: str, keys: set[str]) -> str:
    """A configuration without these keys: every line of theirs, also one that goes on, is a comment."""
    import javaproperties  # noqa: PLC0415  optional, the extra gateway

    written = []
    for part in javaproperties.parse(io.StringIO(text)):
        refused = isinstance(part, javaproperties.KeyValue) and part.key in keys
        written.append(re.sub(r"[^\r\n]+", r"# not here: \g<0>", part.source) if refused else part.source)
    return "".join(written)


def _restored(snapshot: Path) -> str:
    """What a start without --ts-config made of a snapshot, which the copy does not have."""
    try:
        models = models_of(read_properties(snapshot).get("model_snapshot", '{"models": {}}'), "model_snapshot")
    except SlotwiseError as error:
        return f"it is not copied, and cannot be read: {_reason(error)}"
    said = []
    for one in models[:MOST_NAMED]:
        numbers = [f"{key} {one.number(key)}" for key in KEPT if one.number(key) is not None]
        default = ["the default"] if one.settings.get("defaultVersion") else []
        said.append(f"{one.name} {one.version} ({', '.join([one.archive, *default, *numbers])})")
    said += [f"{len(models) - MOST_NAMED} more"] if len(models) > MOST_NAMED else []
    return f"a start without --ts-config had the models of this snapshot: {', '.join(said) or 'none'}; it is not copied: {ANEW}"


def _reason(error: SlotwiseError | ApiError) -> str:
    return str(error.message)
