"""Random histories of the local host's streams: every piece once and in order, every slot free again, every planted bug found.

python -m tests.backends.simulation.test_streaming_histories 4711     runs one history again and prints what did not hold
"""

from __future__ import annotations

import sys

import pytest

from slotwise.backends.local.stream_queue import StreamQueue
from tests.backends.simulation.streaming_bugs import STREAMING_BUGS
from tests.backends.simulation.streaming_history import StreamingHistory
from tests.backends.simulation.virtual_loop import problems_of

HISTORIES, LONG_RUN = 300, 50_000
FOUND_WITHIN = 300


def problems(seed: int, queue: type[StreamQueue] = StreamQueue) -> list[str]:
    """What did not hold in the history with this seed."""
    return problems_of(StreamingHistory(seed, queue).run(), seed)


def test_in_every_history_each_stream_has_its_pieces_once_and_in_order() -> None:
    wrong = {seed: said for seed in range(HISTORIES) if (said := problems(seed))}
    assert not wrong


@pytest.mark.long
def test_in_very_many_histories_of_streams_too() -> None:
    wrong = {seed: said for seed in range(HISTORIES, LONG_RUN) if (said := problems(seed))}
    assert not wrong


@pytest.mark.parametrize("bug", STREAMING_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_that_was_planted_in_streams_is_found(bug: type[StreamQueue]) -> None:
    assert any(problems(seed, bug) for seed in range(FOUND_WITHIN))


if __name__ == "__main__":
    print(problems(int(sys.argv[1])))
