"""Check one archive: every promise, on the workers of both servers or of our own host."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.guarding.foreign import GUARD, LEGACY_MANIFEST
from slotwise.archive.inspection import extract, inspect
from slotwise.bench.bodies import RequestBody, from_files
from slotwise.check.conversation import Conversation, PromiseBroken, PromiseUntested
from slotwise.check.promises import PROMISES
from slotwise.check.real_worker import OWN_HOST, SERVERS, CheckedWorker, WorkerFault, installed, started
from slotwise.check.rows import RowsApart, known_of_rows
from slotwise.errors import MMS, SlotwiseError, pip_install

SOCKET_FOLDER = 70  # characters: below it sw-XXXXXXXX/run-XXXXXXXX/worker.9000 is as long as a Unix socket's path may be
DAMAGE = "It does not start on damaged files."
APART = "Its mates change no bit of a row, or each row runs alone."
SENTENCES = {name: (check.__doc__ or "").strip() for name, check in PROMISES.items()} | {"damage": DAMAGE, "apart": APART}
MOST_ALONE = 4  # of an archive's data files, the largest, are damaged one at a time; the others together
OWN_PARTS = ("MAR-INF", "slotwise", "slotwise.json", "examples", GUARD, LEGACY_MANIFEST)


@dataclass(frozen=True)
class PromiseVerdict:
    """One promise on one server. holds: None where it could not be tested. why: what was observed."""

    promise: str
    holds: bool | None
    why: str = ""


@dataclass(frozen=True)
class CheckReport:
    """All verdicts by server, and the servers' versions."""

    archive: str
    versions: dict[str, str]
    verdicts: dict[str, list[PromiseVerdict]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether no promise is broken on any server."""
        return all(verdict.holds is not False for verdicts in self.verdicts.values() for verdict in verdicts)


@dataclass(frozen=True)
class CheckedArchive:
    """The archive that is checked, and how. folder: scratch space. workers: all that were started. stopped: no more are."""

    path: Path
    info: ArchiveInfo
    examples: list[RequestBody]
    batch_size: int
    profile: str | None
    timeout_s: float
    folder: Path
    rows: RowsApart
    workers: list[CheckedWorker] = field(default_factory=list)
    stopped: Event = field(default_factory=Event)

    def stop(self) -> None:
        """End every worker. A thread that waits for one, or starts another, fails at once."""
        self.stopped.set()
        for worker in list(self.workers):
            worker.close()

    def names(self) -> list[str]:
        """Every file in the archive."""
        return [entry.name for entry in self.info.entries if not entry.name.endswith("/")]

    def data_files(self) -> list[str]:
        """Weights, vocabularies and the like, the largest first."""
        sizes = {entry.name: entry.size_bytes for entry in self.info.entries}
        data = [name for name in self.names() if not name.endswith(".py") and name.split("/")[0] not in OWN_PARTS]
        return sorted(data, key=lambda name: -sizes[name])

    def worker(self, kind: str, *, damaged: Sequence[str] = ()) -> CheckedWorker:
        """Start a worker of `kind` that has loaded the archive. All workers of a kind share one extraction, as on the server.

        damaged: the files that are overwritten, in an extraction of their own.
        """
        model_dir = self.folder / (f"{kind}-damaged" if damaged else kind)
        if damaged:
            shutil.rmtree(model_dir, ignore_errors=True)
        if not model_dir.exists():
            extract(self.path, model_dir, trusted=True, names=[n for n in self.names() if n not in damaged])
            for name in damaged:
                (model_dir / name).parent.mkdir(parents=True, exist_ok=True)
                (model_dir / name).write_bytes(b"damaged")
        environ = {**os.environ, "PYTHONPATH": str(model_dir), "PYTHONUNBUFFERED": "1"}
        decodes = "true" if "slotwise.json" not in self.names() else "false"  # by default, and where `slotwise serve` starts it
        environ |= {"TS_DECODE_INPUT_REQUEST": decodes, "MMS_DECODE_INPUT_REQUEST": decodes}
        environ |= {"SLOTWISE_PROFILE": self.profile} if self.profile else {}
        environ.pop("SLOTWISE_STATE", None)
        run = Path(tempfile.mkdtemp(prefix="run-", dir=self.folder))
        worker = started(kind, model_dir, run, self.timeout_s, environ)
        self.workers.append(worker)
        try:
            if self.stopped.is_set():
                raise CancelledError
            worker.load(self.info.name, self.info.handler, self.batch_size)
        except BaseException:
            worker.close()
            raise
        return worker


def check(
    path: Path,
    bodies: list[Path] | None = None,
    *,
    batch_size: int = 8,
    profile: str | None = None,
    timeout_s: float = 120.0,
    tolerance: float | None = None,
    servers: Sequence[str] = (),
    progress: Callable[[str, str], None] = lambda kind, promise: None,
) -> CheckReport:
    """Check `path` on workers of `servers`, of those that are present() where none is named.

    bodies: example files besides the archive's own.
    tolerance: how far the numbers of two answers to one request may be apart; None takes it from what is proven of the rows.

    Raises SlotwiseError for an archive that is not sound, has no example, or cannot be checked for want of a server.
    """
    info = inspect(path, need_digests=False)
    kinds = {kind: version for kind in servers or present() if (version := installed(kind))}
    if not kinds:
        hint = pip_install('"slotwise[torchserve]"') + f"; for MMS: {pip_install(MMS)}"
        raise SlotwiseError(f"{' and '.join(servers)}: not installed here", hint)
    place = None if len(tempfile.gettempdir()) <= SOCKET_FOLDER else "/tmp"
    with tempfile.TemporaryDirectory(prefix="sw-", dir=place, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        carried = carried_bodies(info)
        unpacked = extract(path, folder / "examples", trusted=True, names=carried)
        examples = from_files([*(bodies or []), *(unpacked / name for name in carried)])
        if not examples:
            hint = 'name some in model.toml (examples = ["one.png"]) or give --body FILE'
            raise SlotwiseError(f"{path.name} carries no example to ask with", hint)
        rows = known_of_rows(info, folder, batch_size, profile)
        rows = rows if tolerance is None else replace(rows, tolerance=tolerance)
        subject = CheckedArchive(path, info, examples, batch_size, profile, timeout_s, folder, rows)
        with ThreadPoolExecutor(len(kinds)) as pool:
            try:
                futures = {kind: pool.submit(_check_on, subject, kind, progress) for kind in kinds}
                return CheckReport(str(path), kinds, {kind: future.result() for kind, future in futures.items()})
            except BaseException:
                subject.stop()
                raise


def present() -> list[str]:
    """TorchServe and MMS as far as they are installed; our own host where neither is."""
    return [kind for kind in SERVERS if installed(kind)] or [OWN_HOST]


def carried_bodies(info: ArchiveInfo) -> list[str]:
    """The names of the examples that an archive carries."""
    return [entry.name for entry in info.entries if re.fullmatch("examples/[^/]+", entry.name)]


def _check_on(subject: CheckedArchive, kind: str, progress: Callable[[str, str], None]) -> list[PromiseVerdict]:
    talk = Conversation(lambda: subject.worker(kind), subject.examples, subject.batch_size, subject.rows.tolerance)
    verdicts = []
    try:
        for name, promise in PROMISES.items():
            progress(kind, name)
            verdicts.append(_verdict(name, lambda promise=promise: promise(talk)))  # type: ignore[misc]
            if name == "starts" and not verdicts[-1].holds:
                return [*verdicts, *(PromiseVerdict(other, None, "it does not start") for other in SENTENCES if other != name)]
    finally:
        talk.restart()
    progress(kind, "damage")
    verdicts.append(_verdict("damage", lambda: _damage(subject, kind, talk)))
    return [*verdicts, PromiseVerdict("apart", subject.rows.holds, subject.rows.why)]


def _verdict(name: str, experiment: Callable[[], str | None]) -> PromiseVerdict:
    try:
        why = experiment()
    except (PromiseBroken, WorkerFault) as broken:
        return PromiseVerdict(name, False, str(broken))
    except PromiseUntested as untested:
        return PromiseVerdict(name, None, str(untested))
    return PromiseVerdict(name, True, why or "")


def _damage(subject: CheckedArchive, kind: str, talk: Conversation) -> str:
    """With a data file overwritten, the worker must not report itself loaded and answer otherwise. Returns what is not known.

    One file that is read with care would hide every other, so each of the largest is overwritten alone.
    """
    names = subject.data_files()
    if not names:
        raise PromiseUntested("it has no data files")
    alone, together = names[:MOST_ALONE], names[MOST_ALONE:]
    tries = [[name] for name in alone] + ([together] if together else [])
    unused = [name for damaged in tries if _changes_nothing(subject, kind, talk, damaged) for name in damaged]
    unknown = [f"{_listed(unused)} damaged: it starts and answers every example as before"] if unused else []
    if len(unused) == len(names):
        raise PromiseUntested(unknown[0])
    if together and together[0] not in unused:
        unknown.append(f"{_listed(together)}: damaged together only")
    return "; ".join(unknown)


def _changes_nothing(subject: CheckedArchive, kind: str, talk: Conversation, damaged: list[str]) -> bool:
    """Whether a worker starts on these damaged files and answers as before. Raises PromiseBroken where it answers otherwise."""
    try:
        worker = subject.worker(kind, damaged=damaged)
    except WorkerFault:
        return False
    with worker:
        if talk.distinct and all(_answered_as_before(worker, talk, number) for number in talk.distinct):
            return True
    raise PromiseBroken(f"it reports itself loaded although {_listed(damaged)} {'are' if damaged[1:] else 'is'} damaged")


def _answered_as_before(worker: CheckedWorker, talk: Conversation, number: int) -> bool:
    try:
        answers = worker.predict([talk.good[number]])
    except WorkerFault:
        return False
    return len(answers) == 1 and answers[0].code == 200 and not talk.difference(answers[0], number)


def _listed(names: Sequence[str]) -> str:
    """The first three names, and how many there are beside them."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
