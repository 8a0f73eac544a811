"""Verify, once per extraction, that the archive is what was built (MAR-INF/DIGESTS.json)."""

from __future__ import annotations

from pathlib import Path


def verify(model_dir: Path) -> None:
    """To come with the archive's digests."""
