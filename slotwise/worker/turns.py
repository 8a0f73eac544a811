"""Whose rows run first: every owner gets a helping before anybody gets a second one."""

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
    """The rows in turn, in helpings: the first has a row of every owner, and each next one is twice as large.

    What an author's `groups` puts together comes out of one helping, so it cannot put one owner before all others. Helpings
    grow, because large ones can be grouped better. step: the most rows that run at once.
    """
    count, order = len(set(owners)), in_turn(owners)
    size = max(count, 2 * step) if count > 1 else len(order)
    while order:
        yield order[:size]
        order, size = order[size:], 2 * size


def divide(groups: Groups, items: Sequence[Any], rows: list[int], owners: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """These rows in the groups that an author's hook makes of them, and the rows that it cannot group.

    Where the hook fails, or loses or repeats a row, it is asked for one owner's rows at a time: it fails for those alone who
    make it fail.
    """
    if (together := _grouped(groups, items, rows)) is not None:
        return together, []
    made: list[list[int]] = []
    lost: list[int] = []
    for owner in dict.fromkeys(owners[row] for row in rows):
        own = [row for row in rows if owners[row] == owner]
        alone = _grouped(groups, items, own)
        if alone is None:
            lost += own
        else:
            made += alone
    return made, lost


def _grouped(groups: Groups, items: Sequence[Any], rows: list[int]) -> list[list[int]] | None:
    """The hook's groups as rows; None where it fails or is not right."""
    try:
        made = [[index(i) for i in group] for group in groups([items[row] for row in rows])]
        if sorted(i for group in made for i in group) != list(range(len(rows))):
            raise ValueError("groups() must name every index exactly once")
    except KeyboardInterrupt:
        raise
    except BaseException:
        logger.debug("groups() failed on %d rows", len(rows), exc_info=True)
        return None
    return [[rows[i] for i in group] for group in made]
