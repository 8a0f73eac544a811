"""`slotwise rollout` on a real server: what fails goes back by itself, what is good arrives, and no client notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slotwise.frontend.process import GatewayRecord

from .conftest import Live, build_handler
from .storm import Storm

pytestmark = [pytest.mark.server, pytest.mark.timeout(1500)]


def rollout(live: Live, archive: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slotwise.cli", "rollout", "killers", str(archive), "--name", live.record.name, *options]
    home = {"SLOTWISE_HOME": str(live.record.state_dir.parent)}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=400, env={**os.environ, **home})


def test_a_failing_archive_goes_back_and_a_good_one_arrives(
    live: Live, front: GatewayRecord, store: Path, tmp_path: Path
) -> None:
    """The old one waits 100 ms for more than come while it shares the clients: no busy machine makes the good one slower.

    At 100% as many requests would be compared, 200 of each: of those that come, one in ten. tests/deploy/ goes up to that.
    """
    failing = build_handler("flaky", store, tmp_path, handler="flaky")
    good = build_handler(
        "better", store, tmp_path, handler="killers", version="2.0", cpu={"batch_size": 4, "max_batch_delay_ms": 5}
    )
    with live.registered("killers", batch_size=8, max_batch_delay=100):
        storm = Storm(front.url, [], clients=8)
        with storm.in_background():
            storm.wait_for(50)
            back = rollout(live, failing, "--steps", "50,80", "--for", "4s")
            names = {listed.name for listed in live.management.list()}
            storm.wait_for(50)
            arrived = rollout(live, good, "--steps", "50,80", "--for", "4s", "--json")
            storm.wait_for(50)
        described = live.management.describe("killers")
    assert storm.lost == []
    assert back.returncode == 1
    assert "killers--new is worse" in back.stderr
    assert "of its requests fail" in back.stderr
    assert "killers--new" not in names
    assert arrived.returncode == 0, arrived.stderr
    assert json.loads(arrived.stdout)["archive"] == good.name
    assert described.archive == good.name
