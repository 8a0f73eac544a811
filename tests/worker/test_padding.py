"""To which sizes a group of rows is padded, and sequences to which length."""

from __future__ import annotations

import numpy as np
import pytest

from slotwise.worker.padding import KINDS, Padding, ladder, pad_sequences, stacked


@pytest.mark.parametrize(("top", "rungs"), [(1, [1]), (2, [2, 1]), (8, [8, 4, 2, 1]), (12, [12, 6, 3, 1])])
def test_the_ladder_halves_down_to_one(top: int, rungs: list[int]) -> None:
    assert ladder(top) == rungs


@pytest.mark.parametrize(
    ("kind", "sizes", "padded", "limited", "shrinks"),
    [
        ("none", [8, 1], [1, 2, 3, 5, 8], [1, 2, 3, 4], True),
        ("bucketed", [8, 4, 2, 1], [1, 2, 4, 8, 8], [1, 2, 4, 4], True),
        ("static", [8, 4, 2, 1], [8, 8, 8, 8, 8], [4, 4, 4, 4], True),
        ("fixed", [8], [8, 8, 8, 8, 8], [8, 8, 8, 8], False),
    ],
)
def test_each_kind_of_padding(kind: str, sizes: list[int], padded: list[int], limited: list[int], shrinks: bool) -> None:
    padding = Padding(kind, 8)
    assert padding.sizes() == sizes
    assert [padding.size(m, 8) for m in (1, 2, 3, 5, 8)] == padded
    assert [padding.size(m, 4) for m in (1, 2, 3, 4)] == limited
    assert padding.shrinks is shrinks
    assert [padding.next_limit(size) for size in (8, 3, 1)] == [4, 1, 0]
    assert Padding(kind, 1).sizes() == [1]
    assert Padding("static", 8).size(2, 3) == 4, "a limit between two rungs"


def test_a_padding_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match=r"^padding is 'odd', but it must be one of none, static, bucketed, fixed$"):
        Padding("odd", 8)
    with pytest.raises(ValueError, match=r"^max_rows is 0, but it must be at least 1$"):
        Padding("none", 0)
    assert all(Padding(kind, 1) for kind in KINDS)


def test_sequences_become_a_rectangle_of_whole_multiples() -> None:
    ids, mask = pad_sequences([[5, 6, 7], [8], []], 9, 2)
    assert ids.tolist() == [[5, 6, 7, 9], [8, 9, 9, 9], [9, 9, 9, 9]]
    assert mask.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert (ids.dtype, mask.dtype) == (np.int64, np.int64)
    assert [pad_sequences(given, 9)[0].shape for given in ([], [[]], [[1]], [[1, 2, 3], []])] == [
        (0, 1),
        (1, 1),
        (1, 1),
        (2, 3),
    ]
    assert [pad_sequences([[1] * n], 9, 4)[0].shape for n in (0, 4, 5)] == [(1, 4), (1, 4), (1, 8)]


def test_masked_arrays_keep_their_masks() -> None:
    rows = [np.ma.masked_equal([1.0, -9.0], -9.0), np.ma.masked_equal([3.0, 4.0], -9.0)]
    assert stacked(rows).tolist() == [[1.0, None], [3.0, 4.0]]
    assert stacked(list(rows[0])).tolist() == [1.0, None]
    assert type(stacked([np.zeros(2)])) is np.ndarray
