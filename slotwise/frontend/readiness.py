"""Know which models are ready from what is seen anyway: looks at the server's list of models, and answers to requests.

Nobody is asked when somebody wants to know. One look that fails says little, and one worker that just came up as little: what
was ready is not any more once all looks of UNREADY_S say so, and is again once all of READY_S do. A model that answers requests
is ready, whatever a look says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

UNREADY_S, READY_S = 3.0, 2.0


@dataclass
class _Belief:
    """Of one model, or of the server. served: it was ready at some time. doubted_at: since when looks say the opposite."""

    ready: bool = False
    served: bool = False
    doubted_at: float | None = None

    def look(self, good: bool, now: float) -> None:
        """Take note of one look. The first good one of all needs no second."""
        if good == self.ready:
            self.doubted_at = None
            return
        if self.doubted_at is None:
            self.doubted_at = now
        if now - self.doubted_at >= ((READY_S if self.served else 0.0) if good else UNREADY_S):
            self.ready, self.served, self.doubted_at = good, True, None


class Readiness:
    """What is known of the server and its models."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._server = _Belief()
        self._models: dict[str, _Belief] = {}

    def look(self, models: Mapping[str, bool] | None, answering: Collection[str]) -> None:
        """Take note of one look.

        models: each that is registered, and whether it has a READY worker; None where the server did not say. answering: those
        that have answered a request since the look before.
        """
        now = self._clock()
        self._server.look(models is not None or bool(answering), now)
        if models is not None:  # one that is gone was unregistered: that was somebody's will
            self._models = {name: self._models.get(name) or _Belief() for name in models}
        for name, state in self._models.items():
            state.look(name in answering or bool(models and models[name]), now)

    def model(self, name: str) -> bool:
        """Whether a request to this model would be answered."""
        return name in self._models and self._models[name].ready

    @property
    def served(self) -> set[str]:
        """The models that were ready at some time, and are registered."""
        return {name for name, state in self._models.items() if state.served}

    @property
    def any_model(self) -> bool:
        """Whether a request to one of the models would be answered."""
        return any(state.ready for state in self._models.values())

    @property
    def server(self) -> bool:
        """Whether the server answers."""
        return self._server.ready

    @property
    def settled(self) -> bool:
        """Whether all is well, and no look said otherwise."""
        return self.any_model and all(
            state.ready and state.doubted_at is None for state in (self._server, *self._models.values())
        )
