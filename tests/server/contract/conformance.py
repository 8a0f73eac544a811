"""Every request keeps its slot, on both real servers, from the same archive bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.server.bursts import Answer, burst, together
from tests.server.conftest import BATCH_SIZE, Live

pytestmark = pytest.mark.server

BAD = {b"text": 400, b"": 400, b"\xff\xfe": 400, b"raise": 500, b"nan": 500, b"mute": 500, b"silent": 500}


def numbers(count: int = BATCH_SIZE) -> list[bytes]:
    """Bodies that no two requests share, so that a shifted answer shows."""
    return [str(n).encode() for n in random.sample(range(100_000), count)]


def with_bad(bad: dict[int, bytes]) -> list[bytes]:
    """A batch of good bodies with bad ones at these positions."""
    return [bad.get(i, body) for i, body in enumerate(numbers())]


def check(bodies: Sequence[bytes], answers: Sequence[Answer], bad: dict[int, bytes]) -> None:
    """One full batch; each good body its own answer, each bad one its own error."""
    assert {answer.batch_size for answer in answers} == {BATCH_SIZE}
    assert sorted(answer.slot for answer in answers if answer.slot is not None) == list(range(BATCH_SIZE))
    for i, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
        if i in bad:
            assert answer.status == BAD[bad[i]], answer
            assert answer.is_clean_error, answer
        else:
            assert answer.status == 200, answer
            assert answer.body == {"answer": 2 * float(body) + 1}


@pytest.mark.parametrize("what", BAD, ids=lambda what: what.decode("latin-1") or "empty")
def test_a_bad_request_at_every_position_costs_only_itself(live: Live, what: bytes) -> None:
    before, hit = live.pids("faults"), set()
    for _attempt in range(10):  # two requests may overtake each other on their way
        for position in range(BATCH_SIZE):
            if position not in hit:
                bad = {position: what}
                bodies = with_bad(bad)
                answers = together(live.inference, "faults", bodies)
                check(bodies, answers, bad)
                hit.add(answers[position].slot)
        if len(hit) == BATCH_SIZE:
            break
    assert hit == set(range(BATCH_SIZE))
    assert live.pids("faults") == before


@pytest.mark.parametrize("count", range(1, BATCH_SIZE + 1))
def test_any_number_of_bad_requests_costs_only_themselves(live: Live, count: int) -> None:
    before = live.pids("faults")
    for _ in range(2):
        positions = random.sample(range(BATCH_SIZE), count)
        bad = {position: random.choice(list(BAD)) for position in positions}
        bodies = with_bad(bad)
        check(bodies, together(live.inference, "faults", bodies), bad)
    assert live.pids("faults") == before


def test_answers_of_any_length_arrive_whole(live: Live) -> None:
    """MMS's front end misreads a response that reaches it in pieces; how long they are depends on those before."""
    before = live.pids("faults")
    for _ in range(12):
        longest = random.choice([10, 300, 3_000, 40_000, 400_000])
        lengths = [random.randrange(longest) for _ in range(BATCH_SIZE)]
        answers = burst(live.inference, "faults", [f"long {n}".encode() for n in lengths], gap_s=0)
        assert [(answer.status, len(answer.body["answer"])) for answer in answers] == [(200, n) for n in lengths]
    assert live.pids("faults") == before
