"""Random histories of streams: each gets the pieces that it gets alone, in order, once; and every planted bug is found.

python -m tests.worker.steps.test_stream_histories 4711     runs one history again and prints what did not hold
"""

from __future__ import annotations

import sys

import pytest

from slotwise.worker.steps.step_loop import StepLoop
from tests.support.seed import PARTS, days_seeds
from tests.worker.steps.stream_bugs import BUGS
from tests.worker.steps.stream_history import StreamHistory

pytestmark = pytest.mark.usefixtures("quiet")

HISTORIES, LONG_PART = 2_000, 4_000
FOUND_WITHIN = 400


def problems(seed: int, loop: type[StepLoop] = StepLoop) -> list[str]:
    """What did not hold in the history with this seed."""
    return StreamHistory(seed, loop).run()


def test_in_every_history_each_stream_is_what_it_is_alone() -> None:
    wrong = {seed: found for seed in range(HISTORIES) if (found := problems(seed))}
    assert not wrong


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_in_very_many_histories_too(part: int) -> None:
    wrong = {seed: found for seed in days_seeds(part, LONG_PART) if (found := problems(seed))}
    assert not wrong


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[StepLoop]) -> None:
    assert any(problems(seed, bug) for seed in range(FOUND_WITHIN))


def test_a_history_is_the_same_each_time() -> None:
    for seed in (1, 2, 3):
        histories = [StreamHistory(seed) for _ in range(2)]
        assert [history.run() for history in histories] == [[], []]
        assert len({(history.turn, history.now) for history in histories}) == 1


if __name__ == "__main__":
    print(problems(int(sys.argv[1])))
