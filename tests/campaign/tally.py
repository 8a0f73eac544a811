"""What a part of the campaign counts, and what a failure looks like."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

MOST_LISTED = 20  # failures with their text; the others are only counted
MOST_OF_A_CASE = 3
NOISE_MIB, NOISE_SHARE = 48, 0.2  # by how much the memory of a process may differ without a leak
BROKEN = ("lost", "wrong", "unplanned", "hangs", "leaks", "late")  # what breaks an invariant


@dataclass
class Tally:
    """The counts of one part.

    cases: those that were tried, of `planned`. requests: what was sent or read. innocents: good requests among others, of
    which `lost` got no good answer. wrong: answers that are not what the request gets alone, or archives taken for what they
    are not. refused: bad requests that were refused as they should be. unplanned: a 5xx that nobody planned, or a traceback.
    hangs: nothing after the deadline and 5 s. leaks: memory that only grows. restarts: of what was tried.
    late: innocents that waited longer than is promised.
    measured: what a part says besides, by name. full: its cases at scale 1; seed, scale, commit, tree (of slotwise/), date,
    cpu: of this part's run. server: what a part was tried on that takes one or the other; "" for the rest.
    """

    planned: int
    full: int = 0
    seed: int = 1
    scale: float = 1.0
    commit: str = ""
    tree: str = ""
    date: str = ""
    cpu: str = ""
    server: str = ""
    cases: int = 0
    requests: int = 0
    innocents: int = 0
    lost: int = 0
    wrong: int = 0
    refused: int = 0
    unplanned: int = 0
    hangs: int = 0
    leaks: int = 0
    restarts: int = 0
    late: int = 0
    seconds: float = 0.0
    memory_mib: list[float] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)

    def fail(self, case: int, kind: str, what: str) -> None:
        """Count a broken invariant. kind: one of BROKEN."""
        setattr(self, kind, getattr(self, kind) + 1)
        of_this_case = sum(failure["case"] == case for failure in self.failures)
        if len(self.failures) < MOST_LISTED and of_this_case < MOST_OF_A_CASE:
            self.failures.append({"case": case, "kind": kind, "what": what[:400]})

    def check_memory(self) -> None:
        """Count a leak where the last quarter needs more than the second: the first is for warming up."""
        quarter = len(self.memory_mib) // 4
        if quarter < 3 or self.leaks:
            return
        early, late = median(self.memory_mib[quarter : 2 * quarter]), median(self.memory_mib[-quarter:])
        if late - early > max(NOISE_MIB, NOISE_SHARE * early):
            self.fail(self.cases, "leaks", f"memory rose from {early:.0f} to {late:.0f} MiB")

    @property
    def broken(self) -> bool:
        """Whether an invariant broke."""
        return any(getattr(self, kind) for kind in BROKEN)

    def as_dict(self) -> dict[str, Any]:
        """As the JSON file has it."""
        return asdict(self)
