"""What `slotwise rollout` wants of the gateway: `.slotwise/NAME/rollouts/MODEL.json`, one file a model.

The file is written before anything is registered and removed after everything is taken away, so whatever ends the process that
writes it, the file says what was going on. Two processes cannot roll out the same model: `only_one` is a lock that ends with
its process.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.server.process_record import ProcessRecord, content_of
from slotwise.server.processes import start_time

Phase = Literal["comparing", "replacing", "leaving"]


@dataclass(frozen=True, kw_only=True)
class RolloutRecord(ProcessRecord):
    """`percent` of the requests to `model` go to the archive that is registered as `new`.

    phase: "comparing", then "replacing" (`new` has every request while `model` itself becomes the new archive), and "leaving"
    (`model` has every request again, `new` is taken away). after, before: how to register `model` as the new archive, and as
    what it was: `archive` and the settings. versions: of both, the old one's first. sha256, content: of the new archive's file,
    and what its workers report; "" where nobody tells. shadow: `new` gets copies, and nobody its answers. step:
    counts what was wanted before. interrupted: whoever wrote it has ended; `percent` is what holds since then.
    """

    model: str
    new: str
    after: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    versions: tuple[str, str] = ("", "")
    sha256: str = ""
    content: str = ""
    phase: Phase = "comparing"
    percent: float = 0.0
    shadow: bool = False
    step: int = 0
    window_s: float = 2.0
    interrupted: bool = False

    @property
    def file(self) -> Path:
        """Where it stands."""
        return _folder(self.name) / f"{quote(self.model, safe='')}.json"

    def save(self) -> None:
        """Write it, in one step."""
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.write(self.file)

    def forget(self) -> None:
        """Remove it."""
        self.file.unlink(missing_ok=True)

    def adopted(self) -> RolloutRecord:
        """The same, as this process goes on with it."""
        pid = os.getpid()
        return dataclasses.replace(self, pid=pid, started=start_time(pid), step=self.step + 1, interrupted=False)


def load_all(name: str) -> tuple[RolloutRecord, ...]:
    """Every roll-out in front of the server `name`.

    Of one that was interrupted while it compared, everything goes to the model itself; while it replaced the model, which may
    be gone, everything goes to the new archive, which had passed.
    """
    return tuple(record for file in sorted(_folder(name).glob("*.json")) if (record := _load(file)) is not None)


def interrupted(name: str) -> tuple[RolloutRecord, ...]:
    """The roll-outs whose process has ended before them."""
    return tuple(record for record in load_all(name) if record.interrupted)


def need_none(name: str) -> None:
    """Raise SlotwiseError where a roll-out goes on, or was interrupted and is not settled yet."""
    for record in load_all(name):
        if record.interrupted:
            archive = record.after.get("archive", "NEW.mar")
            hint = f"`slotwise rollout {record.model} {archive}` finishes or undoes it"
            raise SlotwiseError(f"a roll-out of {record.model} was interrupted", hint)
        raise SlotwiseError(f"a roll-out of {record.model} is going on", "wait for it, or end it")


@contextmanager
def only_one(name: str, model: str) -> Iterator[None]:
    """Within, no other process rolls out this model. Raises SlotwiseError where one does."""
    folder = _folder(name)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(folder / f".{quote(model, safe='')}.lock", os.O_RDWR | os.O_CREAT, 0o600), "rb", buffering=0) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SlotwiseError(f"another roll-out of {model} is going on", "wait for it, or end it") from None
        yield


def _load(file: Path) -> RolloutRecord | None:
    try:
        record = RolloutRecord(**content_of(file))
    except (OSError, ValueError, TypeError):
        return None
    record = dataclasses.replace(record, versions=(record.versions[0], record.versions[1]))
    if record.alive():
        return record
    return dataclasses.replace(record, percent=100.0 if record.phase == "replacing" else 0.0, interrupted=True)


def _folder(name: str) -> Path:
    return project.state_root() / name / "rollouts"
