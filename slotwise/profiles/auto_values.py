"""`"auto"` as a key's value: our own host chooses while it serves, up to a limit.

    batch_size          at most AUTO_BATCH requests     as linger = "auto"
    max_batch_delay_ms  at most AUTO_DELAY_MS           as linger = "auto"
    initial_workers     from min_workers on             as workers_by_load = "auto"
    threads             a share of the cores            as threads = 0, on every server

A profile holds the numbers and the ways of choosing that this stands for. Nothing but a worker's start knows which rows an
archive's engine keeps apart: what was proven for fewer runs in parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from slotwise.errors import SlotwiseError

AUTO = "auto"
AUTO_BATCH, AUTO_DELAY_MS = 32, 20  # with a target less; a wait is never longer than what another batch would cost
CHOSEN_BY = {"batch_size": "linger", "max_batch_delay_ms": "linger", "initial_workers": "workers_by_load"}
NUMBERS = {"batch_size": AUTO_BATCH, "max_batch_delay_ms": AUTO_DELAY_MS, "threads": 0}
OWN = "slotwise"  # the kind of our own host


def chosen(changes: Mapping[str, Any]) -> set[str]:
    """The keys among these that our own host chooses."""
    return {key for key in CHOSEN_BY if changes.get(key) == AUTO}


def as_numbers(changes: Mapping[str, Any], before: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The changes with what each "auto" stands for; "advise" is kept. before: the keys' values until now.

    Raises SlotwiseError where the same place says that nothing is to be chosen.
    """
    numbers = {**changes, **{key: number for key, number in NUMBERS.items() if changes.get(key) == AUTO}}
    if changes.get("initial_workers") == AUTO:
        numbers["initial_workers"] = changes.get("min_workers", before.get("min_workers", 1))
    for key in sorted(chosen(changes)):
        way = CHOSEN_BY[key]
        said = changes.get(way, AUTO)
        if said not in (AUTO, "advise"):
            hint = f'leave {way} away there, or set it to "auto"; or give {key} a number'
            raise SlotwiseError(f'{source}: {key} is "auto", but {way} is {said!r}, which chooses nothing', hint)
        numbers[way] = said if way in changes or before.get(way) != "advise" else "advise"
    return numbers


def check_kind(kind: str, keys: Collection[str]) -> None:
    """Raise SlotwiseError where a server of this kind cannot choose the values of these keys."""
    if kind != OWN and keys:
        key = min(keys)
        raise SlotwiseError(
            f'{key} = "auto": {kind} does not choose it, only Slotwise\'s own host does',
            f"`--set {key}=NUMBER` for this server, or `--server slotwise`; `slotwise tune` finds a number",
        )
