"""Bring archives to every node of a Ray cluster: an actor on the head node keeps them by digest, and replicas fetch them.

An object of Ray's store dies with the process that put it there, so the archives are files of a detached actor. No node needs
a disk that it shares with another. The actor also keeps what replicas report of themselves.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import ray

from slotwise.errors import SlotwiseError
from slotwise.server.ray.front_link import FrontAddress
from slotwise.worker.environment.digests import file_sha256

CHUNK_BYTES = 4 << 20
NAMESPACE = "slotwise"
HEAD = "node:__internal_head__"  # a resource that only the head node has
FETCH_S = 600.0
MOST_REPORTS = 500  # of replicas, the last ones: all of them cross whenever a model is described
MOST_FAILURES = 3  # of a deployment


class Archives:
    """Archives by the SHA-256 of their bytes, below `folder`; it is found again there when the actor is restarted."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.reported: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, list[str]] = {}
        self.front: FrontAddress | None = None
        self.lock = threading.Lock()

    def has(self, digest: str) -> bool:
        """Whether the archive is there as a whole."""
        return self._file(digest).is_file()

    def append(self, digest: str, offset: int, chunk: bytes, last: bool) -> None:
        """Take a part of an archive; after the last one it has to be what its digest says, or nothing is kept."""
        partial = self._file(digest).with_suffix(".partial")
        with partial.open("r+b" if offset else "wb") as target:
            target.seek(offset)
            target.write(chunk)
        if last:
            if file_sha256(partial) != digest:
                partial.unlink()
                raise ValueError("the archive changed on its way")
            partial.replace(self._file(digest))

    def read(self, digest: str, offset: int) -> bytes:
        """A part of an archive from `offset` on; b"" behind its end."""
        with self._file(digest).open("rb") as source:
            source.seek(offset)
            return source.read(CHUNK_BYTES)

    def report(self, replica: str, got: dict[str, Any]) -> None:
        """Keep what a replica says of itself."""
        with self.lock:
            self.reported[replica] = got
            for earliest in list(self.reported)[:-MOST_REPORTS]:
                del self.reported[earliest]

    def fail(self, deployment: str, why: str) -> None:
        """Keep why a replica of this deployment did not start; the last few times."""
        with self.lock:
            self.failed[deployment] = [*self.failed.get(deployment, []), why][-MOST_FAILURES:]

    def reports(self) -> tuple[dict[str, dict[str, Any]], dict[str, list[str]]]:
        """What replicas said of themselves, and why others did not start."""
        with self.lock:
            return dict(self.reported), dict(self.failed)

    def forget(self, deployment: str) -> None:
        """Forget why replicas of this deployment did not start."""
        with self.lock:
            self.failed.pop(deployment, None)

    def hear_at(self, front: FrontAddress | None) -> None:
        """Keep where the front hears replicas, from now on."""
        self.front = front

    def front_address(self) -> FrontAddress | None:
        """Where it does."""
        return self.front

    def clear(self) -> None:
        """Delete the archives."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, digest: str) -> Path:
        if not digest.isalnum():
            raise ValueError("this is no digest")
        return self.folder / f"{digest}.mar"


def keep_archives(name: str, folder: Path) -> Any:
    """Start the actor on the head node, detached: it outlives whoever starts it. Returns its handle."""
    options: dict[str, Any] = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    options |= {"num_cpus": 0, "resources": {HEAD: 0.001}, "max_restarts": -1, "max_concurrency": 8}
    return ray.remote(Archives).options(**options).remote(str(folder))


def upload(keeper: Any, archive: Path, digest: str) -> None:
    """Give an archive to the actor, which may be on another machine."""
    if ray.get(keeper.has.remote(digest)):
        return
    size, offset = archive.stat().st_size, 0
    with archive.open("rb") as source:
        while True:
            chunk = source.read(CHUNK_BYTES)
            last = offset + len(chunk) >= size
            ray.get(keeper.append.remote(digest, offset, chunk, last))
            offset += len(chunk)
            if last:
                return


def fetch(keeper_name: str, digest: str, target: Path) -> Path:
    """Write the archive of that digest to `target` and verify it. Raises SlotwiseError where it is not what was asked for."""
    keeper = ray.get_actor(keeper_name, namespace=NAMESPACE)
    with target.open("wb") as file:
        offset = 0
        while chunk := ray.get(keeper.read.remote(digest, offset), timeout=FETCH_S):
            file.write(chunk)
            offset += len(chunk)
    if file_sha256(target) != digest:
        raise SlotwiseError(f"{target.name} is not the archive that was registered", "register it again")
    return target
