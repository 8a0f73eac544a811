"""How many workers a machine can hold: what does not fit is refused, and an interrupted `scale` leaves what there was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.deploy.scaling import PYTHON_BYTES, check_scaling, scale
from slotwise.errors import SlotwiseError
from slotwise.profiles.memory import free_bytes, total_bytes
from slotwise.server.capacity import WORKERS_PER_CORE, Capacity
from slotwise.worker.environment.cores import available_cores
from tests.server.conftest import Live

MOST = WORKERS_PER_CORE * available_cores()


def test_the_largest_number_that_fits_is_by_cores_or_by_memory() -> None:
    here = Capacity(cores=2, free_bytes=1000)
    assert here.most_workers(10) == 8
    assert here.most_workers(300) == 3
    assert here.most_workers(300, now=2) == 5
    assert here.most_workers(5000) == 1  # one is always tried
    here.check("m", 12, 300, now=12)  # what runs may stay
    with pytest.raises(SlotwiseError, match=r"^9 workers of m do not fit here: 2 cores, and 0 MiB wanted of 0 MiB$") as refused:
        here.check("m", 9, 10)
    assert refused.value.hint == "8 fit at most; --force starts them all the same"


def test_a_containers_memory_counts_where_it_has_less_than_the_machine(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert (free_bytes(tmp_path), total_bytes(tmp_path)) == (3000, 5000)
    (tmp_path / "memory.max").write_text("max\n")
    assert total_bytes(tmp_path) > free_bytes(tmp_path) > 1 << 20
    assert total_bytes(tmp_path / "none") > free_bytes(tmp_path / "none") > 1 << 20


@pytest.mark.parametrize(
    ("batch_cost", "put_back"),
    [({"workers": {"least": 1, "most": 8}}, [(3, None), (1, 8)]), ({}, [(2, None)]), (None, [(2, None)])],
)
def test_a_scale_that_fails_puts_back_the_limits_of_what_the_load_chooses(batch_cost: Any, put_back: list[Any]) -> None:
    """Three workers run, by the load: the registration said two."""
    calls = list[Any]()

    def not_ready(model: str, workers: int, **asked: Any) -> None:
        raise SlotwiseError(f"{model} does not become ready")

    client: Any = SimpleNamespace(
        describe=lambda *_: SimpleNamespace(name="m", workers=[None] * 3, min_workers=2, batch_cost=batch_cost),
        scale=lambda model, workers, version, most=None: calls.append((workers, most)),
        wait_ready=not_ready,
    )
    with pytest.raises(SlotwiseError, match="does not become ready"):
        scale(client, "m", 5, force=True)
    assert calls == [(5, None), *put_back]


@pytest.mark.server
def test_what_does_not_fit_is_refused_by_what_a_worker_takes(live: Live) -> None:
    model = live.management.describe("faults")
    check_scaling(model, 2)
    with pytest.raises(SlotwiseError, match=rf"^{MOST + 1} workers of faults do not fit here: "):
        check_scaling(model, MOST + 1)
    assert model.workers[0].memory_bytes > PYTHON_BYTES / 4


@pytest.mark.server
def test_an_interrupted_scale_puts_back_what_was(live: Live) -> None:
    environ = {**os.environ, "SLOTWISE_HOME": str(live.record.state_dir.parent)}
    command = [sys.executable, "-m", "slotwise.cli", "scale", "quick", "--workers", "4", "--name", live.record.name]
    with live.registered("quick"):
        for _ in range(5):
            scaling = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
            try:
                while live.management.describe("quick").max_workers < 4 and scaling.poll() is None:
                    time.sleep(0.02)
                scaling.send_signal(signal.SIGINT)
                _, printed = scaling.communicate(timeout=120)
            finally:
                scaling.kill()
            if scaling.returncode != 0:  # else a busy machine has sent the signal too late: all four were READY
                break
            live.management.scale("quick", 1)
            live.management.wait_ready("quick", 1)
        assert (scaling.returncode, printed.splitlines()[-1:]) == (130, ["stopped"])
        after = live.management.wait_ready("quick", 1)
        assert (after.min_workers, len(after.workers)) == (1, 1)
