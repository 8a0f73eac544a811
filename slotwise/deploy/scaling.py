"""Numbers of workers: whether they fit on this machine, and how a model gets more or fewer of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slotwise.errors import SlotwiseError
from slotwise.server.capacity import Capacity

if TYPE_CHECKING:
    from slotwise.archive.archive_info import ArchiveInfo
    from slotwise.client.live_model import LiveModel
    from slotwise.client.management import ManagementClient

PYTHON_BYTES = 48 << 20  # a worker before it has loaded anything
BACK_TIMEOUT_S = 60.0


def scale(client: ManagementClient, model: str, workers: int, version: str | None = None, *, force: bool = False) -> LiveModel:
    """Give a model just so many workers and wait until they are READY.

    Where that fails or is interrupted, it has as many as before again, and the limits of those that its load chooses. Raises
    SlotwiseError where they do not fit (force: it is tried all the same) or do not become READY.
    """
    before = client.describe(model, version)
    if not force:
        check_scaling(before, workers)
    try:
        client.scale(model, workers, version)
        return client.wait_ready(model, workers, version=version)
    except BaseException:
        limits = (before.batch_cost or {}).get("workers")  # between which its load chooses
        ran = len(before.workers) if limits else before.min_workers
        with suppress(SlotwiseError):
            client.scale(model, ran, version)
            try:
                client.wait_ready(model, ran, version=version, timeout_s=BACK_TIMEOUT_S)
            finally:
                if limits:
                    client.scale(model, limits["least"], version, most=limits["most"])
        raise


def check_scaling(live: LiveModel, workers: int) -> None:
    """Raise SlotwiseError where a registered model cannot have so many workers here, by what one of them takes."""
    largest = max((worker.memory_bytes for worker in live.workers), default=0)
    Capacity.here().check(live.name, workers, max(largest, PYTHON_BYTES), len(live.workers))


def check_registrations(plan: Sequence[tuple[ArchiveInfo, Mapping[str, Any]]]) -> None:
    """Raise SlotwiseError where the workers that these archives start with do not fit."""
    here = Capacity.here()
    for info, settings in plan:
        here.check(info.name, settings["initial_workers"], least_bytes(info), 0)


def least_bytes(info: ArchiveInfo) -> int:
    """What a worker takes that was never started, at least: Python, and the largest file of its archive."""
    return PYTHON_BYTES + max((entry.size_bytes for entry in info.entries), default=0)
