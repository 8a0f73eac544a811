"""The codecs are in use in both real servers' workers, and leave alone what a handler streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.bursts import ask, burst
from tests.server.conftest import Live, build_handler, needs_a_servers_context

pytestmark = pytest.mark.server


def test_workers_use_the_codecs_and_streamed_answers_arrive_whole(live: Live, store: Path, tmp_path: Path) -> None:
    needs_a_servers_context(live)
    build_handler("streams", store, tmp_path, handler="streams")
    with live.registered("streams", max_batch_delay=200):
        for _ in range(2):
            answers = burst(live.inference, "streams", [b"hello", b"world"])
            assert [(answer.status, answer.body) for answer in answers] == [(200, "hello"), (200, "world")]
            used = ("slotwise", str(live.record.kind == "mms"))
            assert {(answer.headers["x-codec"], answer.headers["x-frames"]) for answer in answers} == {used}
            if live.record.kind == "torchserve":
                answers = burst(live.inference, "streams", [b"stream 1", b"stream 2"])
                assert [answer.body for answer in answers] == ["one two stream 1", "one two stream 2"]


def test_a_full_batch_after_many_single_requests_is_answered(live: Live) -> None:
    """MMS's front end reads small pieces after small responses; without our way of sending it drops the worker here."""
    with live.registered("quick", batch_size=8, max_batch_delay=40) as model:
        for _ in range(2):
            for number in range(40):
                assert ask(live.inference, "quick", str(number).encode()).status == 200
            answers = burst(live.inference, "quick", [b"long 100"] * 8, gap_s=0)
            assert {answer.status for answer in answers} == {200}
        assert live.pids("quick") == [model.workers[0].pid]
