"""Several models on one server: one that is broken does not take the others down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.archive.archive_info import ArchiveInfo
    from slotwise.client.live_model import LiveModel


@dataclass(frozen=True)
class UnservedModel:
    """A model that cannot be served, and why."""

    name: str
    problem: SlotwiseError


def gather(
    models: Sequence[str], obtain: Callable[[str], ArchiveInfo], strict: bool
) -> tuple[list[ArchiveInfo], list[UnservedModel]]:
    """The archives of these models, and the models that have none. strict: the first that has none is an error.

    Raises SlotwiseError where not one can be had.
    """
    archives: list[ArchiveInfo] = []
    unserved: list[UnservedModel] = []
    for model in models:
        try:
            archives.append(obtain(model))
        except SlotwiseError as problem:
            if strict:
                raise
            unserved.append(UnservedModel(model, problem))
    if unserved and not archives:
        raise unserved[0].problem
    return archives, unserved


def deploy_each(
    archives: Iterable[ArchiveInfo], deploy: Callable[[ArchiveInfo], LiveModel], unserved: list[UnservedModel], strict: bool
) -> list[LiveModel]:
    """The models that are READY; the others are added to `unserved`. Raises SlotwiseError where not one is."""
    live: list[LiveModel] = []
    for info in archives:
        try:
            live.append(deploy(info))
        except SlotwiseError as problem:
            if strict:
                raise
            unserved.append(UnservedModel(info.name, problem))
    if unserved and not live:
        raise unserved[-1].problem
    return live


def complaint(unserved: Sequence[UnservedModel]) -> SlotwiseError:
    """The error that a command ends with whose server serves the others."""
    reasons = "; ".join(f"{model.name} is not served: {model.problem.message}" for model in unserved)
    names = " ".join(model.name for model in unserved)
    return SlotwiseError(reasons, f"the other models are served; `slotwise register` takes {names} once that is mended")
