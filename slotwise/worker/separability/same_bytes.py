"""Decide how rows are padded by what is proven of them; for `deterministic`, so that the same request gives the same bytes.

Engines round otherwise in another shape, and some at another place of the same batch. So a row gets the same bits where the
engine gives them in every batch, where all batches have one size whose places are even, or where it runs alone.
"""

from __future__ import annotations

import logging

from slotwise.worker.padding import Padding
from slotwise.worker.separability.two_batches import NOT_DETERMINISTIC
from slotwise.worker.separability.verdict import Verdict

logger = logging.getLogger(__name__)


def padded(verdict: Verdict, requested: Padding, deterministic: bool = False) -> Padding:
    """How rows are padded, and how many run at once, where a profile asks for `requested` and this is known."""
    if deterministic:
        return _unchanging(verdict, requested)
    return Padding(requested.kind, min(requested.max_rows, verdict.most_rows or requested.max_rows))


def _unchanging(verdict: Verdict, requested: Padding) -> Padding:
    """The cheapest padding with which a row's bits depend on nothing but the row.

    As asked, where they are the same in every batch. Else one size for all batches, of which every place gives the same bits.
    Else each row alone.
    """
    if verdict.separable is not True:
        return Padding("none", 1)
    if verdict.same_bits >= requested.max_rows:
        return requested
    fixed = max((size for size in verdict.even if size in verdict.sizes and size <= requested.max_rows), default=1)
    return Padding("none", verdict.same_bits) if verdict.same_bits >= fixed else Padding("fixed", fixed)


def same_bytes(verdict: Verdict, most: int) -> Verdict:
    """Say what it costs that a request always gets the same bytes. Raises ValueError where it cannot."""
    engine, padding = verdict.about.engine, _unchanging(verdict, Padding("none", most))
    if verdict.separable is False and verdict.cause.startswith(NOT_DETERMINISTIC):
        raise ValueError(f"{engine} cannot give the same bytes always: {verdict.cause}")
    if padding.kind == "fixed":
        logger.info("%s: every batch is padded to %d rows, so that the same row gives the same bits", engine, padding.max_rows)
    elif padding.max_rows == most:
        logger.info("%s: a row has the same bits in every batch: that costs nothing", engine)
    else:
        why = verdict.cause or "they depend on the batch"
        logger.warning("%s: at most %d rows run at once, so that their bits are the same: %s", engine, padding.max_rows, why)
    return verdict
