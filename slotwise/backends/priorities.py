"""Say which priority's turn it is: the highest's; but where so many have gone past a lower one, one of that goes."""

from __future__ import annotations

from collections.abc import Iterable

PATIENCE = 16


class Priorities:
    """overdue: the priority that goes before any higher one, where somebody of it waits; None: the highest goes."""

    def __init__(self) -> None:
        self.overdue: float | None = None
        self._passed: dict[float, int] = {}  # how many have gone past each, since it had its last turn

    def gone(self, priority: float, waiting: Iterable[float]) -> None:
        """One of this priority has gone. waiting: the priorities of which somebody waits."""
        self._passed = {each: self._passed.get(each, 0) + (each < priority) for each in waiting if each != priority}
        most = max(self._passed, key=self._passed.__getitem__, default=None)
        self.overdue = most if most is not None and self._passed[most] >= PATIENCE else None
