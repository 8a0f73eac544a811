"""Verify, once for each extraction, that the archive holds what was built (MAR-INF/DIGESTS.json)."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

DIGESTS = Path("MAR-INF", "DIGESTS.json")
MARKER = Path("MAR-INF", ".verified")  # written by the first worker that verified; holds the digest of DIGESTS.json
CODE = {".py", ".pyc", ".so", ".pth"}


class DigestError(ValueError):
    """The extracted archive is not what was built. A ValueError, because TorchServe logs no message of a RuntimeError."""


def verify(model_dir: Path, *, others: bool = False) -> None:
    """Compare every file with its SHA-256, unless an earlier worker of the same extraction has done so.

    others: code that nobody listed may be there (TorchServe installs an archive's requirements beside it).

    A folder without slotwise.json and without digests passes: a handler under development, or an archive of another tool.
    Raises DigestError for a file that was changed or is missing, and for code that the digests do not list.
    """
    if (model_dir / "slotwise").is_dir() and not Path(__file__).resolve().is_relative_to(model_dir.resolve()):
        logger.warning("this worker runs %s, not the archive's own code: unset PYTHONPATH", Path(__file__).parent)
    listing = model_dir / DIGESTS
    if not listing.is_file():
        if (model_dir / "slotwise.json").is_file():
            raise DigestError(f"the archive lacks {DIGESTS}: it was changed after it was built")
        return
    raw = listing.read_bytes()
    stamp, marker = hashlib.sha256(raw).hexdigest(), model_dir / MARKER
    if marker.is_file() and marker.read_text("ascii", "replace") == stamp:
        return
    listed: dict[str, str] = json.loads(raw)["files"]
    for name, digest in listed.items():
        if not (model_dir / name).is_file():
            raise DigestError(f"{name} is missing from the extracted archive")
        if _sha256(model_dir / name) != digest:
            raise DigestError(f"{name} is not the file that was built")
    for file in [] if others else model_dir.rglob("*"):  # a library may leave other files in its working directory
        name = file.relative_to(model_dir).as_posix()
        if file.suffix in CODE and file.parent.name != "__pycache__" and name not in listed:
            raise DigestError(f"{name} is code that the archive's digests do not list")
    _mark(marker, stamp)


def content(model_dir: Path) -> str:
    """The digest of the list of digests, which stands for all that the archive holds; "" where there is none."""
    return _sha256(model_dir / DIGESTS) if (model_dir / DIGESTS).is_file() else ""


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _mark(marker: Path, stamp: str) -> None:
    """Write the marker at once or not at all, because workers start side by side. The folder may be read-only."""
    partial = marker.with_name(f"{marker.name}.{os.getpid()}")
    try:
        partial.write_text(stamp, "ascii")
        partial.rename(marker)
    except OSError:
        logger.info("the digests will be verified again by the next worker: %s cannot be written", marker)
