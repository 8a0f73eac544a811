"""Put today's worker into an archive of an earlier release; its handler, its weights and everything else stay to the byte.

slotwise/** or _slotwise_guard/**    today's; a module that has moved since is found under its old name, too
slotwise.json or guard.json          names the release of the worker; nothing else in it changes
MAR-INF/DIGESTS.json                 fresh

The renewed archive is tried before it takes the place of the old one: it loads, warms up, and answers its own examples. Where
the old worker can answer without a server, it is asked the same.
"""

from __future__ import annotations

import json
import mimetypes
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slotwise import __version__
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.guarding.foreign import GUARD, TERMS
from slotwise.archive.guarding.guarded import guard_code
from slotwise.archive.inspection import inspect, opened, release_of, shown
from slotwise.archive.local_model import LocalAnswer, LocalModel
from slotwise.archive.packaging import WORKER, FileContent, in_archive, in_file, in_text, worker_code, write_zip
from slotwise.errors import SlotwiseError
from slotwise.files.disk import written_whole
from slotwise.interrupts import held, let_through
from slotwise.worker.environment.digests import file_sha256
from slotwise.worker.separability.about import NOBODY
from slotwise.worker.separability.agree import agree
from slotwise.worker.separability.proof import KEY, carried

MOVED = {  # modules of earlier workers that handlers imported, and where they are
    "errors": "slot_errors",
    "context": "hosts.java.context",
    "images": "inputs.images",
    "ink": "inputs.ink",
    "text": "inputs.text",
    "records": "inputs.translation_request",
    "settings": "environment.settings",
}
MOST_EXAMPLES = 32
ANSWERS_ALONE = [0, 2]  # a worker before that answers on a server only
STAGE = re.compile(r"stages/[^/]+/slotwise\.json")


@dataclass(frozen=True)
class Renewal:
    """What was done. before, after: releases of the worker. tried: whether anything was; False where there was nothing to do.

    examples: how many bodies the renewed archive has answered. compared: whether the old worker was asked the same.
    changed: the examples that it answered otherwise.
    """

    archive: Path
    before: str
    after: str
    tried: bool = False
    examples: int = 0
    compared: bool = False
    changed: list[str] = field(default_factory=list)


def outdated(info: ArchiveInfo) -> str:
    """One line, with the command to type, where an archive carries the worker of an earlier release; else "".

    A worker answers as its own release did, faults and all.
    """
    return _line(info.path, info.release, _is_guarded(info))


def outdated_in(store: Path) -> list[str]:
    """A line for each archive of a model store that carries the worker of an earlier release. Reads what says so, no more."""
    lines = []
    for path in sorted(store.glob("*.mar")):
        with suppress(SlotwiseError):
            release, guarded = release_of(path)
            lines.append(_line(path, release, guarded))
    return [line for line in lines if line]


def _line(path: Path, release: str, guarded: bool) -> str:
    if not release or _numbers(release) >= _numbers(__version__):
        return ""
    part, command = "guard" if guarded else "worker", f"slotwise renew {shlex.quote(str(path))}"
    return f"{path.name} carries the {part} of slotwise {release}: `{command}` puts today's in"


def renew(
    path: Path, out: Path | None = None, *, force: bool = False, say: Callable[[str], None] = lambda message: None
) -> Renewal:
    """Write the renewed archive over the old one, or to `out`. It appears at once, after its trial, or not at all.

    force: also where its answers to the examples are not those of the old worker. Raises SlotwiseError for an archive that
    carries no worker of ours, is not sound, does not start any more, or answers its examples otherwise.
    """
    found = _which(path)
    info = inspect(path, need_digests=False)
    if not info.release:
        raise SlotwiseError(f"{path.name} carries no worker of ours", "`slotwise guard` puts one around another tool's handler")
    if _numbers(info.release) > _numbers(__version__):
        raise SlotwiseError(f"{path.name} carries the worker of slotwise {info.release}", f"this is {__version__}: upgrade it")
    target = (out or path).resolve()
    with held(), opened(path) as source:
        old = in_archive(source)
        fresh = _fresh(info, old)
        if out is None and _holds(info, fresh):
            return Renewal(path, info.release, info.release)
        folder = _folder(info)
        kept = {name: content for name, content in old.items() if not name.startswith(folder)}
        with written_whole(target) as unfinished:
            write_zip(kept | fresh, unfinished)
            shutil.copymode(path, unfinished)
            say(f"trying {path.name} with today's worker")
            with let_through():
                renewal = _tried(info, unfinished, out or path, force)
            if renewal.changed and not force:
                hint = "look at them (`slotwise check`), then --force takes it all the same"
                raise SlotwiseError(f"{path.name} answers otherwise with today's worker: {', '.join(renewal.changed)}", hint)
            if out is None and _which(path) != found:
                raise SlotwiseError(f"{path.name} was written anew while it was tried", "nothing was changed; renew it again")
            _correct_report(path, target, unfinished)
    return renewal


def _which(path: Path) -> tuple[int, int] | None:
    """What tells the file that is there now from one that is written in its place."""
    if not path.exists():
        return None
    about = path.stat()
    return about.st_ino, about.st_mtime_ns


def _is_guarded(info: ArchiveInfo) -> bool:
    return any(entry.name == TERMS for entry in info.entries)


def _numbers(release: str) -> list[int]:
    return [int(part) if part.isdecimal() else 0 for part in release.split(".")]


def _folder(info: ArchiveInfo) -> str:
    """Where the archive has the code of ours."""
    return f"{GUARD}/" if _is_guarded(info) else "slotwise/"


def _fresh(info: ArchiveInfo, old: dict[str, FileContent]) -> dict[str, FileContent]:
    """Today's worker or guard, and the file that says whose it is."""
    if _is_guarded(info):
        description = TERMS
        code = {name: in_text(text) for name, text in guard_code().items()}
    else:
        description = "slotwise.json"
        code = {name: in_file(file) for name, file in worker_code().items()}
        code |= {name: in_text(text) for name, text in _at_old_places(old, code).items()}
    new_worker = any(old[name].sha256() != content.sha256() for name, content in code.items() if name in old)
    rewritten = {description, *(name for name in old if new_worker and STAGE.fullmatch(name))}
    described: dict[str, dict[str, Any]] = {}
    for name in rewritten:
        with old[name].open() as file:
            described[name] = json.load(file)
        if new_worker:
            # Another worker has proven that, and today's tries when it starts; but where that ends it nobody shall.
            still_holds = [one.to_json() for one in carried(described[name]) if one.about == NOBODY]
            described[name].pop(KEY, None)
            described[name] |= {KEY: still_holds} if still_holds else {}
    described[description] |= {"worker": WORKER, "slotwise": __version__}
    return code | {name: in_text(json.dumps(one, indent=2, sort_keys=True)) for name, one in described.items()}


def _holds(info: ArchiveInfo, fresh: dict[str, FileContent]) -> bool:
    """Whether the archive has just these files of ours already."""
    digests = {entry.name: entry.sha256 for entry in info.entries if entry.name.startswith(_folder(info))}
    if not _is_guarded(info):
        digests |= {entry.name: entry.sha256 for entry in info.entries if entry.name == "slotwise.json"}
    return digests == {name: content.sha256() for name, content in fresh.items()}


def _at_old_places(old: dict[str, FileContent], code: dict[str, FileContent]) -> dict[str, str]:
    """A module for each one of the old worker that handlers may import by a name that it has no longer."""
    stand_ins = {}
    for name, module in MOVED.items():
        file = f"slotwise/worker/{name}.py"
        if file in old and file not in code:
            what = f'"""Where slotwise.worker.{module} was in an earlier release."""\n\nimport sys\n\n'
            stand_ins[file] = f"{what}import slotwise.worker.{module} as moved\n\nsys.modules[__name__] = moved\n"
    return stand_ins


def _tried(info: ArchiveInfo, renewed: Path, target: Path, force: bool) -> Renewal:
    """Let the renewed archive answer its examples, and the old one where it can; by force it need not."""
    bodies = _examples(info)
    try:
        answers = _answers(renewed, bodies)
    except SlotwiseError as error:
        message = error.message.replace(renewed.name, info.path.name)
        raise SlotwiseError(f"it does not run with today's worker: {message}", "nothing was changed") from error
    bad = [name for name, answer in answers.items() if answer.status != 200]
    if bad:
        said = shown(answers[bad[0]].body.decode("utf-8", "replace"))
        raise SlotwiseError(f"{info.path.name}: with today's worker {bad[0]} is answered with {said}", "nothing was changed")
    try:
        before = _answers(info.path, bodies)
    except SlotwiseError as error:
        if bodies and _numbers(info.release) >= ANSWERS_ALONE and not force:
            hint = "nothing was changed; --force takes today's worker without a comparison"
            raise SlotwiseError(f"the old worker does not answer: {error.message}", hint) from error
        before = {}
    changed = [name for name, answer in before.items() if answer.status == 200 and not _agree(answer, answers[name])]
    return Renewal(target, info.release, __version__, True, len(answers), bool(before), changed)


def _examples(info: ArchiveInfo) -> dict[str, bytes]:
    """The bodies that the archive carries, by name."""
    names = [entry.name for entry in info.entries if entry.name.startswith("examples/") and not entry.name.endswith("/")]
    with opened(info.path) as source:
        return {name.removeprefix("examples/"): source.read(name) for name in sorted(names)[:MOST_EXAMPLES]}


def _answers(archive: Path, bodies: dict[str, bytes]) -> dict[str, LocalAnswer]:
    """What the archive answers to each body alone."""
    with LocalModel(archive) as model:
        kinds = {name: mimetypes.guess_type(name)[0] or "application/octet-stream" for name in bodies}
        return {name: model.answer([(body, {"content-type": kinds[name]})])[0] for name, body in bodies.items()}


def _agree(one: LocalAnswer, other: LocalAnswer) -> bool:
    """Whether two answers say the same: JSON within an engine's tolerance, everything else exactly."""
    try:
        return one.body == other.body or agree(one.json(), other.json())
    except (ValueError, RecursionError):
        return False


def _correct_report(path: Path, target: Path, renewed: Path) -> None:
    """Name the renewed archive's size and digest in the build's report, where it lies beside the archive."""
    report = path.with_name(f"{path.stem}.report.json")
    if target != path.resolve() or not report.is_file():
        return
    about = json.loads(report.read_text("utf-8"))
    about |= {"size_bytes": renewed.stat().st_size, "sha256": file_sha256(renewed), "renewed": __version__}
    with written_whole(report) as unfinished:
        unfinished.write_text(json.dumps(about, indent=2) + "\n", "utf-8")
