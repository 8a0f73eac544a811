"""The seam between what clients speak to (frontend/) and what answers a request (backends/).

The front end reads a request, decides whether it is let in, and gives it to a backend; it never knows which one. A backend
knows nothing of the front end: what it has to ask or to tell, it asks and tells the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from slotwise.backends.exchange import PATH, BackendAnswer, BackendRequest, RawHeaders, Refused
from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from slotwise.backends.catalog import ModelCard
    from slotwise.client.live_model import LiveModel

__all__ = [
    "ANOTHER_ARCHIVE",
    "MAX_BODY_BYTES",
    "PATH",
    "Backend",
    "BackendAnswer",
    "BackendRequest",
    "NoMemory",
    "RawHeaders",
    "Refused",
    "by_default",
]

MAX_BODY_BYTES = 32 * 2**20
ANOTHER_ARCHIVE = "another archive of this model, which takes something else, has come in the place of what this was read for"


class NoMemory(SlotwiseError):
    """A model does not fit into the memory that is free."""


class Backend(Protocol):
    """What answers requests to models.

    models, reachable, max_body_bytes: as it was looked at last. looks: how often it was. look_soon: something is not as it is
    known to be. registry: its own metrics. streams: whether `request.pieces` may take an answer as it comes.
    takes_turns: whether senders take turns in it. others: the versions that are not the default, by model and version.
    """

    models: Mapping[str, LiveModel]
    reachable: bool
    max_body_bytes: int
    looks: int
    look_soon: bool
    registry: CollectorRegistry
    streams: bool
    takes_turns: bool
    others: Mapping[tuple[str, str], LiveModel]

    async def answer(self, request: BackendRequest) -> BackendAnswer:
        """The answer to one request. Raises Refused: what the client gets where there is none."""

    def not_run(self, request: BackendRequest) -> None:
        """A request ended before a queue had looked at it: what it was to begin has not begun."""

    def wait_s(self, model: str, count: int) -> float:
        """Seconds until so many requests to a model have been answered, by what batches have cost; 0: nobody knows."""

    def waiting(self, model: str) -> int:
        """How many requests to a model wait in it; 0 where nobody knows."""

    async def look(self, max_age_s: float) -> None:
        """Look at what is there, where the last look is older than that."""

    def card(self, model: LiveModel) -> ModelCard:
        """What it takes, by the archive that runs as far as that is known. It may read files: not on the event loop."""

    def about(self) -> dict[str, Any] | None:
        """Which server it is, for the page; None where there is none."""

    @property
    def leaving(self) -> int:
        """Requests in flight where no new ones go."""

    async def metrics(self) -> BackendAnswer | None:
        """The server's own Prometheus metrics; None where it has none. Raises OSError."""

    async def load(self, name: str, url: str) -> None:
        """Load a model from `url`: it is ready when this returns. Raises SlotwiseError (NoMemory), or Refused (503)."""

    async def unload(self, name: str) -> None:
        """Unload a model. Raises SlotwiseError, or Refused (503)."""

    def close(self) -> None:
        """Close all connections."""


def by_default(versions: Sequence[LiveModel]) -> tuple[dict[str, LiveModel], dict[tuple[str, str], LiveModel]]:
    """Each model's default version, and all others by model and version. versions: of each model the default one first."""
    models = {model.name: model for model in reversed(versions)}
    return models, {(one.name, one.version): one for one in versions if one.version != models[one.name].version}
