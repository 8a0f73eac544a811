"""Order a batch's rows fairly: every request (the owner of its rows) has a turn before any request has a second one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import index
from typing import Any

logger = logging.getLogger(__name__)

Groups = Callable[[Sequence[Any]], list[list[int]]]


def in_turn(owners: Sequence[int]) -> list[int]:
    """Every row once: the first row of every owner, then the second of every owner that has one, and so on."""
    if len(set(owners)) == len(owners):
        return list(range(len(owners)))
    seen: Counter[int] = Counter()
    turns = []
    for owner in owners:
        turns.append(seen[owner])
        seen[owner] += 1
    return sorted(range(len(owners)), key=turns.__getitem__)


def helpings(owners: Sequence[int], step: int) -> Iterator[list[int]]:
    """Cut the rows into helpings, the owners taking turns. The first has at least one row of every owner, and each
    next one has twice as many rows.

    An author's `groups` sees one helping at a time, so it cannot put all rows of one owner before those of the others.
    Helpings grow, because many rows can be grouped better than few. step: the most rows that run at once.
    """
    order = in_turn(owners)
    size = len(order)
    if size > 2 * step and (count := len(set(owners))) > 1:
        size = max(count, 2 * step)
    while order:
        yield order[:size]
        order, size = order[size:], 2 * size


def divide(groups: Groups, items: Sequence[Any], rows: list[int], owners: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Group these rows by an author's hook. Returns the groups, and the rows that the hook cannot group.

    Where the hook fails, or loses or repeats a row, it is called again for each owner's rows alone. So it costs only those
    owners whose rows make it fail.
    """
    if (together := _grouped(groups, items, rows)) is not None:
        return together, []
    divided: list[list[int]] = []
    ungrouped: list[int] = []
    for owner in dict.fromkeys(owners[row] for row in rows):
        own = [row for row in rows if owners[row] == owner]
        alone = _grouped(groups, items, own)
        if alone is None:
            ungrouped += own
        else:
            divided += alone
    return divided, ungrouped


def _grouped(groups: Groups, items: Sequence[Any], rows: list[int]) -> list[list[int]] | None:
    """The hook's groups, as rows of the batch; None where the hook fails or does not name every index once."""
    try:
        indices = [[index(i) for i in group] for group in groups([items[row] for row in rows])]
        if indices == [list(range(len(rows)))]:  # nearly always
            return [rows]
        if sorted(i for group in indices for i in group) != list(range(len(rows))):
            raise ValueError("groups() must name every index exactly once")
    except KeyboardInterrupt:
        raise
    except BaseException:
        logger.debug("groups() failed on %d rows", len(rows), exc_info=True)
        return None
    return [[rows[i] for i in group] for group in indices]
