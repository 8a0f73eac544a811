"""Decide which requests of a batch are decoded, and in which order, by what decoding them is estimated to cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slotwise.worker.batch import Batch
from slotwise.worker.budget import Budget, Cost, so_far
from slotwise.worker.request import Request
from slotwise.worker.slot_errors import SlotError, TooLarge, Unavailable

Costs = Mapping[int, Cost | None]  # by slot; None where nobody can say


def admit(batch: Batch, budget: Budget, cost_of: Callable[[Request], Cost | SlotError | None]) -> dict[int, Cost | None]:
    """Estimate what every request costs to decode, and refuse those over their share before anything is decoded."""
    costs: dict[int, Cost | None] = {}
    packed_last = sorted(range(batch.n), key=lambda i: bool(batch.requests[i].headers.encoding))
    for i in packed_last:  # to estimate a packed body it has to be unpacked, which takes time
        if budget.over(budget.decode_until):
            if batch.slots[i].error is None:
                batch.reject(i, Unavailable("there was no time to look at this body"))
            continue
        cost = cost_of(batch.requests[i]) if batch.slots[i].error is None else None
        if isinstance(cost, SlotError):
            batch.reject(i, cost)
        else:
            costs[i] = cost
    owners = batch.owners and [batch.owners[i] for i in costs]
    for i, admitted in zip(costs, budget.admit(list(costs.values()), owners), strict=True):
        if not admitted:
            batch.reject(i, TooLarge("decoding this body would take more than this request's share of time or memory"))
    return costs


def quickest_first(batch: Batch, slots: Sequence[int], costs: Costs, budget: Budget) -> tuple[list[int], list[int]]:
    """The slots that are decoded side by side, and those that need so much memory that each is decoded alone.

    A quick request waits for no slow one: both lists are sorted by the estimated time, then by the size of the body. Where one
    owner has several requests, they count together.
    """

    sizes = so_far([len(request.body) + 1 for request in batch.requests], batch.owners)
    if not costs:
        return sorted(slots, key=sizes.__getitem__), []
    estimates = [costs.get(i) for i in range(batch.n)]
    times = so_far([cost.decode_ms if cost else 0.0 for cost in estimates], batch.owners)
    ordered = sorted(slots, key=lambda i: (times[i], sizes[i]))
    heavy = [i for i in ordered if budget.heavy(costs[i])]
    return [i for i in ordered if i not in heavy] if heavy else ordered, heavy
