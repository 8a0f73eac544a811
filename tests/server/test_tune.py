"""The tuner on real servers: it finds a setting, and the server keeps exactly what it had, whatever happens to the tuner."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.server.conftest import Live, started
from tests.support.mounts import mount
from tests.support.sleeper import sleeper
from tests.support.tuning import state, tuner
from tests.support.waiting import until

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server of the kind that the test names."""
    with with_standin(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@contextmanager
def with_standin(kind: str, folder: Path) -> Iterator[Live]:
    """A server with one model: a stand-in, which only sleeps."""
    (store := folder / "store").mkdir(parents=True)
    sleeper(store)
    with started(kind, folder, store) as server:
        server.management.register("standin.mar", batch_size=4, max_batch_delay=7, initial_workers=1)
        server.management.wait_ready("standin")
        yield server


@pytest.mark.parametrize("live", ["torchserve"], indirect=True)
def test_a_setting_is_found_and_the_server_keeps_what_it_had(live: Live, tmp_path: Path) -> None:
    before = state(live)
    process = tuner(live, tmp_path, "--slo-p99-ms", "60000", "--max-trials", "3", "--json")
    said, told = process.communicate(timeout=270)
    assert process.returncode == 0, told
    result = json.loads(said)
    assert result["winner"]["workers"] >= 1
    assert len(result["trials"]) == 3
    assert len(result["finalists"]) >= 2
    assert all(len(finalist["rounds"]) == 5 for finalist in result["finalists"])
    assert {load["clients"] for load in result["by_clients"]} == {1, 8, 32}
    page = (tmp_path / "index.html").read_text("utf-8")
    assert page.count("<svg") == 1
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons", ""
    )
    assert (tmp_path / "tune.png").stat().st_size > 10_000
    assert json.loads((tmp_path / "tune.json").read_text("utf-8"))["winner"] == result["winner"]
    assert state(live) == before


@pytest.mark.parametrize("live", ["torchserve", "mms"], indirect=True)
def test_a_target_out_of_reach_exits_with_2_and_names_the_closest(live: Live, tmp_path: Path) -> None:
    before = state(live)
    process = tuner(live, tmp_path, "--slo-p99-ms", "1", "--max-trials", "2")
    said, told = process.communicate(timeout=240)
    assert process.returncode == 2, told
    assert "the closest is" in " ".join(said.split())
    assert state(live) == before


@pytest.mark.parametrize(
    ("live", "end"), [("torchserve", signal.SIGINT), ("torchserve", signal.SIGKILL), ("mms", signal.SIGINT)], indirect=["live"]
)
def test_an_interrupted_tuner_leaves_the_server_as_it_was(live: Live, tmp_path: Path, end: signal.Signals) -> None:
    before = state(live)
    process = tuner(live, tmp_path)
    until(lambda: len(live.management.list()) > 1, "no trial was registered")
    os.killpg(process.pid, end)
    said = process.communicate(timeout=150)
    assert process.returncode == (130 if end == signal.SIGINT else -end), said
    until(lambda: state(live) == before, f"{state(live)} is not {before}")


def test_a_server_that_dies_ends_the_tuner_in_one_line(tmp_path: Path) -> None:
    with with_standin("torchserve", tmp_path / "server") as live:
        archives = sorted(live.record.model_store.iterdir())
        process = tuner(live, tmp_path)
        until(lambda: len(live.management.list()) > 1, "no trial was registered")
        os.kill(live.record.pid, signal.SIGKILL)
        told = process.communicate(timeout=240)[1]
        assert process.returncode == 1, told
        assert len([line for line in told.splitlines() if line.startswith("error: ")]) == 1
        assert "Traceback" not in told
        assert sorted(live.record.model_store.iterdir()) == archives


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB."""
    yield from mount(tmp_path / "small", "size=64m")


def test_a_disk_that_fills_up_ends_the_tuner_in_one_line(small_disk: Path, tmp_path: Path) -> None:
    with with_standin("torchserve", small_disk) as live:
        before = state(live)
        process = tuner(live, tmp_path)
        until(lambda: len(live.management.list()) > 1, "no trial was registered")
        filler = small_disk / "filler"
        while process.poll() is None:  # again and again: what a trial leaves would be room for the next one
            with filler.open("ab", buffering=0) as file, suppress(OSError):
                file.write(bytes(shutil.disk_usage(small_disk).free))
            time.sleep(0.05)
        told = process.communicate()[1]
        filler.unlink()
        assert process.returncode == 1, told
        assert "no space left on" in told
        assert "Traceback" not in told
        until(lambda: state(live) == before, f"{state(live)} is not {before}")
