"""Build, verify, unpack, download and load model archives, .mar files: `load("m.mar").answer([...])`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slotwise.archive import local_model  # an import of this module brings the whole room

if TYPE_CHECKING:
    from slotwise.archive.local_model import LocalModel

__all__ = ["load"]


def load(archive: Any, *, batch_size: int = 8, profile: str | None = None) -> LocalModel:
    """The archive, ready to answer: `load("m.mar").answer([body, ...])`. See slotwise.archive.local_model."""
    return local_model.load(archive, batch_size=batch_size, profile=profile)
