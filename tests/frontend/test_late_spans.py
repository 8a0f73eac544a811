"""Of a request that is not sampled nothing is noted until something goes wrong, and then enough for its trace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slotwise.backends.local.worker_link import WorkerLink

from .traced_front import Make, Traced, archives, id_of, make, parent_of, traced

__all__ = ["archives", "make"]  # fixtures
pytestmark = pytest.mark.anyio


async def together(it: Traced, *bodies: bytes, flags: tuple[str, ...] = ()) -> list[int]:
    asked = [it.ask("/predictions/digits", body, f"r-{i}", flags=flags[i] if flags else "") for i, body in enumerate(bodies)]
    return [status for status, _ in await asyncio.gather(*asked)]


def about(span: Any) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_of_who_is_well_answered_nothing_is_noted(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    known = []
    send = WorkerLink.send

    def sent(link: WorkerLink, batch: Any) -> None:
        send(link, batch)
        known.append((link.batch, [one.request.way for one in batch]))

    monkeypatch.setattr(WorkerLink, "send", sent)
    async with traced(make, "digits", late_s=60.0) as it:
        assert await together(it, b"a", b"b") == [200, 200]
        assert known == [(None, [None, None])]
        assert it.spans == []


async def test_a_sampled_ones_batch_names_all_and_is_linked_to_itself(make: Make) -> None:
    async with traced(make, "digits", late_s=60.0) as it:
        assert await together(it, b"a", b"b", b"c", flags=("", "01", "")) == [200, 200, 200]
        (batch,) = it.named("batch")
        assert sorted(about(batch)["slotwise.batch.requests"].split()) == ["r-0", "r-1", "r-2"]
        assert [link.context.span_id for link in batch.links] == [id_of(it.of("r-1"))]
        assert it.named("call of the model")
        assert len(it.named("worker")) == 1


@pytest.mark.parametrize("flags", [("", "", ""), ("01", "", "")])
async def test_who_fails_has_its_batch_and_what_ran_in_it(make: Make, flags: tuple[str, ...]) -> None:
    async with traced(make, "digits", late_s=60.0) as it:
        assert await together(it, b"a", b"poison", b"c", flags=flags) == [200, 500, 200]
        (batch,) = it.named("batch")
        poisoned = it.of("r-1")
        assert about(batch)["slotwise.cuts"] > 0
        assert sorted(about(batch)["slotwise.batch.requests"].split()) == ["r-0", "r-1", "r-2"]
        assert len({link.context.span_id for link in batch.links}) == 3
        assert id_of(poisoned) in {link.context.span_id for link in batch.links}
        assert any(not span.status.is_ok for span in it.named("call of the model"))
        assert any(parent_of(span) == id_of(poisoned) for span in it.named("worker"))
        assert about(poisoned)["http.request.body.size"] == 6


async def test_a_death_is_noted_with_the_batch_that_it_ended(make: Make) -> None:
    async with traced(make, "digits", late_s=60.0) as it:
        assert await together(it, b"a", b"once") == [200, 200]
        for identity in ("r-0", "r-1"):
            assert [event.name for event in it.of(identity).events] == ["its worker ended"]
            tries = [span for span in it.named("worker") if parent_of(span) == id_of(it.of(identity))]
            tries.sort(key=lambda span: span.start_time or 0)
            assert [span.status.description for span in tries] == ["the worker ended", None]
        ended = next(span for span in it.named("batch") if not span.status.is_ok and span.status.description)
        assert sorted(about(ended)["slotwise.batch.requests"].split()) == ["r-0", "r-1"]


async def test_who_takes_too_long_has_what_its_answer_says(make: Make) -> None:
    async with traced(make, "digits", late_s=0.0) as it:
        assert await together(it, b"a", b"b") == [200, 200]
        for identity in ("r-0", "r-1"):
            (worker,) = [span for span in it.named("worker") if parent_of(span) == id_of(it.of(identity))]
            assert about(worker)["slotwise.batch.size"] == 2
        assert {about(span)["slotwise.batch.slot"] for span in it.named("worker")} == {0, 1}


async def test_a_stream_has_its_first_and_its_last_piece(make: Make) -> None:
    async with traced(make, "words", late_s=0.0) as it:
        status, body = await it.ask("/predictions/words", b"[5]", "r-1", "Accept: text/event-stream\r\n", flags="")
        assert status == 200, body
        assert [event.name for event in it.of("r-1").events] == ["first piece", "last piece"]


async def test_each_record_of_many_has_a_way(make: Make) -> None:
    async with traced(make, "digits", late_s=0.0) as it:
        content = b'{"inputs": [{"name": "x", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}]}'
        status, _ = await it.ask("/v2/models/digits/infer", content, "r", flags="")
        assert status == 200
        assert [parent_of(it.of(f"r-{i}")) for i in range(2)] == [id_of(it.of("r"))] * 2
