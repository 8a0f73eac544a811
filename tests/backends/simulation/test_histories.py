"""Random histories of the local host's queue: nobody loses anything, and every planted bug is found.

python -m tests.backends.simulation.test_histories 4711     runs one history again and prints what did not hold
"""

from __future__ import annotations

import sys

import pytest

from slotwise.backends.local.model_queue import ModelQueue
from tests.backends.simulation.bugs import BUGS
from tests.backends.simulation.history import History
from tests.backends.simulation.virtual_loop import problems_of, run
from tests.support.seed import PARTS, days_seeds

HISTORIES, LONG_PART = 2_000, 2_000
FOUND_WITHIN = 400


def problems(seed: int, queue: type[ModelQueue] = ModelQueue) -> list[str]:
    """What did not hold in the history with this seed."""
    return problems_of(History(seed, queue).run(), seed)


def test_in_every_history_each_request_ends_once_with_its_own_answer() -> None:
    wrong = {seed: said for seed in range(HISTORIES) if (said := problems(seed))}
    assert not wrong


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_in_very_many_histories_too(part: int) -> None:
    wrong = {seed: said for seed in days_seeds(part, LONG_PART) if (said := problems(seed))}
    assert not wrong


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[ModelQueue]) -> None:
    assert any(problems(seed, bug) for seed in range(FOUND_WITHIN))


def test_a_history_is_the_same_each_time() -> None:
    assert [History(7).random.random() for _ in range(2)] == [History(7).random.random() for _ in range(2)]
    for seed in (1, 2, 3):
        first, second = History(seed), History(seed)
        assert run(first.run(), seed) == run(second.run(), seed)
        assert first.outcomes == second.outcomes


if __name__ == "__main__":
    print(problems(int(sys.argv[1])))
