"""What is known of an archive that was inspected."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from slotwise.archive.packaging import DIGESTS
from slotwise.errors import SlotwiseError
from slotwise.model_spec import NAME
from slotwise.worker.separability.verdict import Verdict

CONFIG_KEYS = {"batch_size": "batchSize", "max_batch_delay_ms": "maxBatchDelay"}  # ours, and TorchServe's


@dataclass(frozen=True)
class ArchivedFile:
    """One file in an archive."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class ArchiveInfo:
    """What `inspect` read. model: the description in slotwise.json ({} in an archive of another tool).

    inputs: the digests of what it was built from. config: TorchServe's model-config.yaml, which other tools' archives may have.
    release: the release of slotwise whose worker or guard it carries; "" where it carries none. separability: what is proven of
    its rows, a verdict an engine.
    """

    path: Path
    size_bytes: int
    sha256: str
    manifest: dict[str, Any]
    model: dict[str, Any]
    profiles: dict[str, Any] = field(default_factory=dict)
    entries: list[ArchivedFile] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    release: str = ""
    separability: list[Verdict] = field(default_factory=list)

    @property
    def content(self) -> str:
        """The digest of its list of digests: what a worker that was started from it reports; "" where it has none."""
        return next((entry.sha256 for entry in self.entries if entry.name == DIGESTS), "")

    @property
    def foreign(self) -> bool:
        """Whether another tool made it: it carries neither a description of ours nor digests."""
        return not self.model and not self.content

    def wishes(self, profile: str) -> dict[str, Any]:
        """What the model wants otherwise than the profile: its own [profiles.NAME], or what its model-config.yaml says.

        A handler of another tool may answer once a batch. So its batches have one request, unless its config says more; behind
        a guard they need not.
        """
        if self.model:
            return dict(self.model.get("profiles", {}).get(profile, {}))
        numbers = {key: self.config.get(name) for key, name in CONFIG_KEYS.items()}
        said = {key: value for key, value in numbers.items() if type(value) is int and value > 0}
        return {"batch_size": 1, **said} if self.foreign else said

    @property
    def requirements(self) -> str:
        """The file of Python packages that its manifest names for the server to install; "" where it names none."""
        named = PurePosixPath(str(self.manifest["model"].get("requirementsFile") or "")).name
        return named if any(entry.name == named for entry in self.entries) else ""

    @property
    def name(self) -> str:
        """The model's name as the servers see it."""
        return str(self.manifest["model"]["modelName"])

    @property
    def version(self) -> str:
        """The model's version as the servers see it."""
        return str(self.manifest["model"].get("modelVersion", ""))

    @property
    def handler(self) -> str:
        """The handler's file."""
        return str(self.manifest["model"]["handler"])


def check_name(name: str, hint: str = "use") -> None:
    """Raise SlotwiseError where nothing can be called so: it becomes a file's or a folder's name, too."""
    if not NAME.fullmatch(name):
        raise SlotwiseError(f"{name!r:.100} cannot be a model's name", f"{hint} letters, digits, - _ and .")
