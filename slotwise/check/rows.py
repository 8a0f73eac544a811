"""What is known of an archive's rows on this machine: whether its mates change one, and how near two answers have to be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.build_proof import ask_worker
from slotwise.archive.guarding.foreign import GUARD
from slotwise.archive.guarding.guarded import proof_of
from slotwise.archive.inspection import extract
from slotwise.worker.separability.agree import TOLERANCE
from slotwise.worker.separability.proof import KEY, carried
from slotwise.worker.separability.verdict import Verdict

# Other inputs may differ more between two shapes than the one that was measured; and an answer has six digits.
MARGIN, LEAST = 16.0, 1e-5


@dataclass(frozen=True)
class RowsApart:
    """holds: whether everybody gets an answer that their mates did not change; None where nobody knows. why: what is known.

    tolerance: how far two answers to one request may be apart, because they were computed in batches of other sizes.
    """

    holds: bool | None
    why: str
    tolerance: float = TOLERANCE


def known_of_rows(info: ArchiveInfo, folder: Path, batch_size: int, profile: str | None) -> RowsApart:
    """Ask the archive's own worker, for the engine that it takes here. folder: scratch space."""
    names = {entry.name for entry in info.entries}
    if f"{GUARD}/guard.json" in names:
        proof = proof_of(info.path)
        return RowsApart(True if proof and proof.separable is not None else None, proof.sentence() if proof else "")
    if "slotwise/worker/hosts/proving.py" not in names:
        older = (
            f"it carries the worker of slotwise {info.release}: `slotwise renew`"
            if info.release
            else "it is no handler of ours"
        )
        return RowsApart(None, f"unproven: {older}")
    model_dir = extract(info.path, folder / "proving", trusted=True)
    answer = ask_worker(model_dir, batch_size, profile or "cpu")
    found = carried({KEY: answer["verdicts"]})
    if not found:
        return RowsApart(None, f"unproven: {answer.get('why')}")
    return RowsApart(*_judged(found[0]), tolerance_of(found[0]))


def tolerance_of(verdict: Verdict) -> float:
    """What two answers may differ by, made from the difference between shapes that was measured."""
    apart = min(verdict.between_shapes.absolute, verdict.between_shapes.relative)
    if verdict.most_rows == 1:
        apart = 0.0  # there is one shape
    elif verdict.separable is not True or not math.isfinite(apart):
        return TOLERANCE
    return min(max(LEAST, MARGIN * apart), TOLERANCE)


def _judged(verdict: Verdict) -> tuple[bool | None, str]:
    alone = verdict.most_rows == 1
    return (True if verdict.separable or alone else None), f"on {verdict.about}: {verdict.sentence()}"
