"""Who is too late for the target, with linger "auto": set aside, so that those that come are in time; never lost, nor starved.

Who is set aside goes once nobody else of its priority waits, or after PATIENCE others; the same turns hold among those.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.backends.local.model_queue import ModelQueue
from slotwise.backends.local.queue_members import WaitingRequest
from slotwise.bench.offline import LinearTime
from slotwise.host.model_versions import ModelVersions
from slotwise.tune.virtual_host import Arrival, VirtualLoad, VirtualSetting, serve
from tests.backends.simulation.bugs import LATE_BUGS
from tests.backends.simulation.test_senders import Asked, CrowdHistory
from tests.backends.simulation.virtual_loop import problems_of, run

HISTORIES = 40
LINE, TARGET_S = LinearTime(20.0, 8.0), 0.2
HALF = 4 / LINE.at(4) * 1000  # a second, in batches that take half of the target


class LateHistory(CrowdHistory):
    """A history of a crowd that is too much for its workers, by a target that they could keep."""

    target_s, took_s = 0.2, (0.02, 0.03, 0.04)

    def __init__(self, seed: int, queue: type[ModelQueue] = ModelQueue) -> None:
        super().__init__(seed, queue)
        self.linger, self.set_aside = "auto", 0

    def check_batch(self, batch: Sequence[WaitingRequest]) -> None:
        super().check_batch(batch)
        self.set_aside += sum(one.aside for one in batch)


def test_in_every_history_who_is_set_aside_ends_once_and_has_its_turn() -> None:
    histories = [LateHistory(seed) for seed in range(HISTORIES)]
    assert not {seed: said for seed, one in enumerate(histories) if (said := problems_of(one.run(), seed))}
    assert sum(one.set_aside for one in histories) > 20 * HISTORIES


@pytest.mark.parametrize("bug", LATE_BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[ModelQueue]) -> None:
    assert any(problems_of(LateHistory(seed, bug).run(), seed) for seed in range(HISTORIES))


def late_auto(**others: object) -> VirtualSetting:
    return VirtualSetting(LINE, "auto", 16, 10, TARGET_S * 1000, noise=0.05, **others)  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(st.floats(1.2, 3.0), st.integers(1, 3), st.integers(0, 100))
def test_at_an_overload_most_of_what_can_be_answered_is_answered_in_time(times: float, workers: int, seed: int) -> None:
    """In batches of half of the target, one of seventeen late; first come, first served has none in time after a second."""
    seconds = 12
    found = serve(late_auto(workers=workers), VirtualLoad(seconds, rate=times * HALF * workers), seed)
    assert found.asked == found.answered + found.refused
    assert found.in_time > 0.7 * HALF * workers * seconds


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 900), st.floats(0.2, 0.7), st.integers(1, 3), st.integers(0, 100))
def test_after_a_burst_those_that_come_are_answered_in_time(burst: int, part: float, workers: int, seed: int) -> None:
    """Whatever waits from before: and that is answered, too, since less comes than can be served."""
    steady = [Arrival(i / (part * HALF * workers), f"steady {i}", 600.0) for i in range(int(30 * part * HALF * workers))]
    trace = [*(Arrival(0.0, f"burst {i}", 600.0) for i in range(burst)), *steady]
    found = serve(late_auto(workers=workers), VirtualLoad(30, trace=trace), seed)
    assert found.answered == found.asked == len(trace)
    assert found.in_time > 0.85 * len(steady)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["free", "exact", "advise"]), st.floats(0.5, 3.0), st.floats(0, 500))
def test_nothing_else_knows_a_second_line(linger: str, times: float, target_ms: float) -> None:
    """The target changes no batch; and a batch of what came first goes first."""
    load = VirtualLoad(5, rate=times * HALF)
    batches = [serve(VirtualSetting(LINE, linger, 16, 5, target), load).sent for target in (0.0, target_ms)]  # type: ignore[arg-type]
    assert batches[0] == batches[1]
    sent = [int(sender.split()[1]) for batch in batches[0] for sender in batch]
    assert sent == sorted(sent)


@pytest.mark.parametrize("many", [8, 32, 512])
def test_one_that_floods_does_not_make_another_ones_requests_late(many: int) -> None:
    """Each one of the other is in the first batch that is formed after it came, and answered within the target."""

    async def history() -> list[float]:
        asked = Asked(lambda batch: LINE.at(len(batch)) / 1000, linger="auto", target_s=TARGET_S)
        flood, took_s = asked.flood("flood", many), list[float]()
        await asyncio.sleep(5.0)
        for _ in range(100):
            came_at = asked.loop.time()
            await asked.ask("other")
            took_s.append(asked.loop.time() - came_at)
            await asyncio.sleep(asked.loop.time() % 0.1)
        for one in flood:
            one.cancel()
        await asyncio.wait(flood)
        return took_s

    took_s = run(history(), 1)
    assert max(took_s) <= TARGET_S


def test_where_the_queue_is_full_who_floods_gives_way_and_of_its_own_who_is_set_aside() -> None:
    async def history() -> list[tuple[str, bool]]:
        asked = Asked(lambda batch: LINE.at(len(batch)) / 1000, linger="auto", target_s=TARGET_S)
        line = asked.queue.waiting
        clients = asked.flood("flood", 50)
        await asyncio.sleep(5.05)
        asked.queue.dispatcher.job_queue_size = len(line)
        waited = list(line)
        clients += asked.flood("other", 3)
        await asyncio.sleep(0.001)
        refused = [(one.request.sender, one.aside) for one in waited if not one.open and not one.taken]
        for one in clients:
            one.cancel()
        await asyncio.wait(clients)
        return refused

    assert run(history(), 1) == [("flood", True)] * 3


def test_how_many_wait_aside_is_described_and_a_metric() -> None:
    async def history() -> tuple[object, object, int]:
        asked = Asked(lambda batch: LINE.at(len(batch)) / 1000, linger="auto", target_s=TARGET_S)
        clients = asked.flood("flood", 50)
        await asyncio.sleep(5.05)
        served = Mock(queue=asked.queue, ledger=asked.queue.ledger, ends=Counter[str](), asleep=False, wanted=1, links=[])
        metrics = ModelVersions({"m": {"1": served}}).collect()
        number = next(one.samples[0].value for one in metrics if one.name == "slotwise_host_aside_requests")
        found = asked.queue.dispatcher.described().get("aside"), number, sum(one.aside for one in asked.queue.waiting)
        for one in clients:
            one.cancel()
        await asyncio.wait(clients)
        await asyncio.sleep(1.0)
        assert "aside" not in asked.queue.dispatcher.described()
        return found

    described, number, really = run(history(), 1)
    assert described == number == really > 20
