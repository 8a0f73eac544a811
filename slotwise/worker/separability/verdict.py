"""What is known of whether a network keeps its rows apart: one verdict an engine, as an archive carries it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from slotwise.worker.separability.about import NOBODY, About
from slotwise.worker.separability.bits import Deviation

NONE = Deviation()
# Raised where an earlier proof took for kept apart what mixes rows: 1 saw no difference between two tensors in a list, and
# looked at padding only of tokens; 2 did not know the versions of what a network's own module imports; 3
# took batches for tried in which all mates had failed, looked at no padding of texts, and varied no numbers beside arrays; 4
# tried no row of which numbers are missing; 5 was answered from what the handler had kept of an item, as a cache is.
PROOF = 6


@dataclass(frozen=True)
class Verdict:
    """What was found out about whether one archive's network keeps its rows apart on one engine.

    separable: True, False, or None where that is not known. cause: why not True, in plain words. most_rows: how many rows may
    run at once by this proof; 0 means any number. sizes: the batches in which no mates changed the row, smallest first; in that
    of two, where items have lengths, a longer one moved it by less than the tolerance.

    between_shapes: how far a row's output is at most from what it is alone. same_bits: the largest batch up to which a row has
    the same bits at every size and place; 1 where they depend on that. even: the batches in which it has the same bits at every
    place. These two are said of numbers only, and of items that have no length. proof: by which proof it was found out.
    """

    separable: bool | None
    cause: str = ""
    most_rows: int = 0
    sizes: tuple[int, ...] = ()
    between_shapes: Deviation = NONE
    same_bits: int = 1
    even: tuple[int, ...] = ()
    about: About = NOBODY
    proof: int = PROOF

    def both(self, other: Verdict) -> Verdict:
        """What is known where this was found with one row, and the other with another."""
        worse = next((one for one in (self, other) if one.separable is False), None) or (other if self.separable else self)
        return Verdict(
            worse.separable,
            worse.cause,
            min((one.most_rows for one in (self, other) if one.most_rows), default=0),
            tuple(size for size in self.sizes if size in other.sizes),
            self.between_shapes.most(other.between_shapes),
            min(self.same_bits, other.same_bits),
            tuple(size for size in self.even if size in other.even),
            self.about,
        )

    def sentence(self) -> str:
        """What follows from it for a batch, in one line."""
        if self.separable:
            apart = self.between_shapes.absolute
            between = f"another shape of batch moves a number by {apart:.1e} at most" if apart else "in batches of any size"
            return f"its mates change no bit of a row; {between}"
        if not self.most_rows:
            return f"nobody knows whether mates change a row: {self.cause}"
        how = "one by one" if self.most_rows == 1 else f"at most {self.most_rows} at once"
        return f"rows run {how}: {self.cause}"

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON; an infinite difference is null."""
        between = {name: value if math.isfinite(value) else None for name, value in asdict(self.between_shapes).items()}
        return {**asdict(self), "sizes": list(self.sizes), "even": list(self.even), "between_shapes": between}

    @classmethod
    def from_json(cls, data: Any) -> Verdict:
        """Read what `to_json` wrote. Raises ValueError for anything else."""
        try:
            data = {"proof": 1, **data}
            known = {field.name: data[field.name] for field in fields(cls)}
            between = {name: math.inf if value is None else float(value) for name, value in known["between_shapes"].items()}
            known |= {name: tuple(map(int, known[name])) for name in ("sizes", "even")}
            known |= {name: int(known[name]) for name in ("most_rows", "same_bits", "proof")}
            known |= {"between_shapes": Deviation(**between), "about": About(**known["about"])}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("not a verdict") from error
        texts = [known["cause"], *asdict(known["about"]).values()]
        if known["separable"] not in (True, False, None) or not all(isinstance(text, str) for text in texts):
            raise ValueError("not a verdict")
        return cls(**known)
