"""Order a batch's rows fairly: every request (the owner of its rows) has a turn before any request has a second one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter, index
from typing import Any

from slotwise.worker.batch import Row

logger = logging.getLogger(__name__)

OWNER = attrgetter("owner")
Groups = Callable[[list[Row]], Sequence[Sequence[int]]]  # indices of these rows, in groups


def in_turn(rows: Sequence[Row]) -> list[Row]:
    """Every row once: the first row of every owner, then the second of every owner that has one, and so on."""
    if len(set(map(OWNER, rows))) == len(rows):
        return list(rows)
    seen: Counter[int] = Counter()
    turns = []
    for row in rows:
        turns.append(seen[row.owner])
        seen[row.owner] += 1
    return [rows[i] for i in sorted(range(len(rows)), key=turns.__getitem__)]


def helpings(rows: Sequence[Row], step: int) -> Iterator[list[Row]]:
    """Cut the rows into helpings, the owners taking turns. The first has at least one row of every owner, and each
    next one has twice as many rows.

    An author's `groups` sees one helping at a time, so it cannot put all rows of one owner before those of the others.
    Helpings grow, because many rows can be grouped better than few. step: the most rows that run at once.
    """
    order = in_turn(rows)
    size = len(order)
    if size > 2 * step and (count := len(set(map(OWNER, rows)))) > 1:
        size = max(count, 2 * step)
    while order:
        yield order[:size]
        order, size = order[size:], 2 * size


def divide(groups: Groups, rows: list[Row]) -> tuple[list[list[Row]], list[Row]]:
    """Group these rows by an author's hook. Returns the groups, and the rows that the hook cannot group.

    Where the hook fails, or loses or repeats a row, it is called again for each owner's rows alone. So it costs only those
    owners whose rows make it fail.
    """
    if (together := _grouped(groups, rows)) is not None:
        return together, []
    divided: list[list[Row]] = []
    ungrouped: list[Row] = []
    for owner in dict.fromkeys(row.owner for row in rows):
        own = [row for row in rows if row.owner == owner]
        alone = _grouped(groups, own)
        if alone is None:
            ungrouped += own
        else:
            divided += alone
    return divided, ungrouped


def _grouped(groups: Groups, rows: list[Row]) -> list[list[Row]] | None:
    """The hook's groups; None where the hook fails or does not name every index once."""
    try:
        indices = each_once(groups(rows), len(rows))
    except KeyboardInterrupt:
        raise
    except BaseException:
        logger.debug("groups() failed on %d rows", len(rows), exc_info=True)
        return None
    return [[rows[i] for i in group] for group in indices]


def each_once(groups: Any, count: int) -> list[list[int]]:
    """What an author's `groups` gave, as lists. Raises ValueError or TypeError where it does not name every index once."""
    indices = [[index(i) for i in group] for group in groups]
    every = list(range(count))
    if indices != [every] and sorted(i for group in indices for i in group) != every:
        raise ValueError("groups() must name every index exactly once")
    return indices
