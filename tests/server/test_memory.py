"""A loop of large bodies: nobody's answer is lost, and the server's memory stays under its limit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from slotwise.client.inference import InferenceClient
from slotwise.profiles.profile import load_profile
from slotwise.profiles.render import render_properties, usual_heap_mb
from tests.server.conftest import Live

MIB = 1 << 20
BODY = b"1" * (15 * MIB)  # a number, too large for JSON: the answer is a short 500
CLIENTS = 12  # the bodies of more may be over one client's share of the front's memory, while they come
ELSEWHERE_MB = 400  # Java's own code, its threads, netty's small buffers


def test_the_heap_is_by_memory_and_by_the_largest_body() -> None:
    assert usual_heap_mb(16 * MIB, 64 << 30) == 1024
    assert usual_heap_mb(16 * MIB, 2 << 30) == 512
    assert usual_heap_mb(16 * MIB, 256 * MIB) == 256
    assert usual_heap_mb(1 * MIB, 64 << 30) == 304
    profile = load_profile("cpu", environ={}, cores=0)
    for kind in ("torchserve", "mms"):
        assert f" -Xmx{usual_heap_mb(profile.max_request_bytes)}m\n" in render_properties(profile, kind)
        assert " -Xmx700m\n" in render_properties(profile.but({"heap_mb": 700}, "here"), kind)
    assert "-Xmx" not in render_properties(profile, log_config="profiles/log4j2.xml")  # a file for any machine


@pytest.mark.server
@pytest.mark.slow
def test_large_bodies_over_and_over(live: Live) -> None:
    heap_mb = usual_heap_mb(live.record.effective_profile().max_request_bytes)
    server = psutil.Process(live.record.pid)
    with live.registered("quick"), InferenceClient(live.record) as client, ThreadPoolExecutor(CLIENTS) as clients:
        for _ in range(4):
            answers = list(clients.map(lambda _: client.predict("quick", BODY), range(30)))
            assert [answer.status_code for answer in answers] == [500] * 30, {answer.text[:200] for answer in answers}
            assert all(answer.json()["error"]["code"] == 500 for answer in answers)
            assert server.memory_info().rss < (2 * heap_mb + ELSEWHERE_MB) * MIB
