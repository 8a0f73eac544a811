"""Which request owns which row, and what a record that was refused costs."""

from __future__ import annotations

import numpy as np

from slotwise.worker import BadRequest, Request, Unavailable
from slotwise.worker.answer import Refusal
from slotwise.worker.batch import NOT_RUN, Batch, Row


def batch(n: int = 3) -> Batch:
    return Batch([Request(b"", id=f"id-{i}") for i in range(n)])


def test_one_item_is_one_row_of_its_request() -> None:
    one = batch()
    one.accept(1, ["item"])
    (row,) = one.rows
    assert (row.owner, row.item, row.error) == (1, "item", NOT_RUN)
    assert (one.slots[1].records, one.slots[1].unencoded) == ([row], 1)
    assert [slot.unencoded for slot in one.slots] == [0, 1, 0]


def test_records_keep_their_places_and_those_that_were_refused_cost_no_row() -> None:
    one = batch()
    one.accept(2, ["a", BadRequest("bad"), np.zeros(1), BadRequest("worse")])
    one.accept(0, [BadRequest("alone")])
    one.accept(1, [])
    assert [(row.owner, row is record) for row, record in zip(one.rows, one.slots[2].records[::2], strict=True)] == [
        (2, True)
    ] * 2
    refused = [record for record in one.slots[2].records[1::2] if isinstance(record, Refusal)]
    assert [record.message for record in refused] == ["bad", "worse"]
    assert [slot.unencoded for slot in one.slots] == [0, 0, 2]
    (alone,) = one.slots[0].records
    assert isinstance(alone, Refusal)
    assert one.slots[1].records == []


def test_requests_of_one_owner_have_slots_of_their_own() -> None:
    one = Batch([Request(b"")] * 3, [7, 4, 7])
    for i in range(3):
        one.accept(i, ["item"] * (i + 1))
    assert [(row.owner, row.slot) for row in one.rows] == [(7, 0), (4, 1), (4, 1), (7, 2), (7, 2), (7, 2)]


def test_a_request_is_rejected_as_a_whole() -> None:
    one = Batch([Request(b""), Request(b"", refused=BadRequest("the host's"))])
    one.reject(0, Unavailable("late"))
    errors = [slot.error for slot in one.slots]
    assert [(error.status, error.message) for error in errors if error] == [(503, "late"), (400, "the host's")]


def test_whose_rows_they_are_is_said_once_each() -> None:
    one = batch()
    assert one.ids() == ["id-0", "id-1", "id-2"]
    assert one.ids([Row(2, 0, 2), Row(0, 0, 0), Row(7, 0, 2)]) == ["id-2", "id-0"]
    assert one.ids([]) == []
    assert (one.n, one.answers) == (3, [])
