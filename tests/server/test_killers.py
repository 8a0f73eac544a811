"""A request that ends its worker, under load, in front of both real servers: nobody else loses anything."""

from __future__ import annotations

import time
from collections import Counter

import httpx
import pytest

from slotwise.frontend.process import GatewayRecord

from .conftest import Live
from .storm import Storm

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

WORKERS = 2


def test_bodies_that_end_workers_cost_nobody_else_anything(live: Live, front: GatewayRecord) -> None:
    file = live.record.state_dir / "deaths.txt"
    file.unlink(missing_ok=True)
    with live.registered("killers", max_batch_delay=20, initial_workers=WORKERS):
        while "killers" not in {model["name"] for model in front.status()["models"] if model["ready_workers"]}:
            time.sleep(0.2)
        storm = Storm(front.url, [b"exit 1", b"segfault 2"])
        with storm.in_background():
            while not storm.over:
                time.sleep(0.1)
        metrics = httpx.get(f"{front.url}/metrics").text
    assert storm.lost == []
    assert storm.refused == [[500, 422, 422, 422]] * 2
    workers = set(file.read_text().splitlines())  # a body, and the pid of a worker that it ended
    deaths = Counter(line.rpartition(" ")[0] for line in workers)
    assert set(deaths) == {"exit 1", "segfault 2"}
    assert max(deaths.values()) <= 2
    assert 'slotwise_killers_total{model="killers"} 2.0' in metrics
