"""Ctrl-C, a termination or a closed terminal at any moment: the exit code says what was done, and nothing is left over.

Fifty rounds over the commands that run in the foreground, seeded; `make test` has 15 of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwise.archive.inspection import inspect
from slotwise.zoo.trained import FACTS, KEPT, WEIGHTS
from tests.server.conftest import Live, build_handler, started
from tests.server.foreground import START, rounds, struck
from tests.support.insects import draw
from tests.support.sleeper import sleeper
from tests.support.tuning import state

STOPPED = (130, "stopped")
MAKE = """
import time
def make(out, weights, progress):
    for step in range(4):
        (out / f"part-{step}.bin").write_bytes(b"x" * 100_000)
        print("step", step, flush=True)
        time.sleep(0.05)
    return {"parts": 4}
"""
HANDLER = (Path(__file__).parent / "handlers" / "faults.py").read_text("utf-8")


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny archive."""
    return build_handler("faults", tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("models"))


@pytest.mark.server
@rounds(8, quick=3)
def test_serve(n: int, tmp_path: Path, faults: Path) -> None:
    (tmp_path / "model_store").mkdir()
    shutil.copy(faults, tmp_path / "model_store")
    lines = ("Ctrl-C stops it", "registering", "starting", "try: curl", "READY", START)
    kind = "mms" if n % 3 == 2 else "torchserve"
    ended = struck("serve", ["faults.mar", "--port", "0", "--server", kind], lines, n, tmp_path)
    wanted = (0, "stopped") if ended.shows("Ctrl-C stops it") else STOPPED
    assert ended.stopped() == wanted, (ended.when, ended.lines)
    state_dir = tmp_path / ".slotwise" / "default"
    assert [file.name for file in state_dir.glob("*") if file.name in ("server.json", "key_file.json", "tmp")] == []
    assert list(tmp_path.glob("slotwise-*")) == []


@rounds(18, quick=6)
def test_gateway(n: int, tmp_path: Path) -> None:
    lines = ("page:", "page:", START, "page:")
    arguments = ["--port", "0", "--translation-port", "-1", "--drain-delay-s", "0.05"]
    ended = struck("gateway", arguments, lines, n, tmp_path)
    if ended.shows("page:"):
        assert ended.code == 0, (ended.when, ended.lines)
    else:
        assert (ended.code, ended.lines) == (130, ["stopped"]), (ended.when, ended.lines)
    assert not (tmp_path / ".slotwise" / "default" / "gateway.json").exists()


@rounds(14, quick=4)
def test_build(n: int, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "faults.py").write_text(HANDLER, "utf-8")
    (folder / "make.py").write_text(MAKE, "utf-8")
    (folder / "model.toml").write_text('name = "own"\nhandler = "faults.py"\nfiles = ["part-0.bin", "part-3.bin"]\n', "utf-8")
    lines = ("running its make.py", "step 3", "step 1", START, "built", "step 2", "step 3")
    ended = struck("build", ["own"], lines, n, tmp_path)
    archive, report = tmp_path / "model_store" / "own.mar", tmp_path / "model_store" / "own.report.json"
    if ended.code == 0:
        assert ended.shows("built"), (ended.when, ended.lines)
    else:
        assert ended.stopped() == STOPPED, (ended.when, ended.lines)
    assert archive.exists() == report.exists()
    if archive.exists():
        inspect(archive)
    assert list(tmp_path.rglob("*.partial")) == list(tmp_path.glob("slotwise-*")) == []


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few pictures to train on."""
    folder = tmp_path_factory.mktemp("pictures")
    for i in range(18):
        draw(folder / ("train" if i < 12 else "val") / ("bees" if i % 2 else "ants"), "bee" if i % 2 else "ant", i)
    return folder


@rounds(4, quick=1)
def test_train(n: int, tmp_path: Path, pictures: Path) -> None:
    folder = tmp_path / "ants_bees"
    folder.mkdir()
    text = (Path(__file__).parents[2] / "models" / "ants_bees" / "model.toml").read_text("utf-8")
    (folder / "model.toml").write_text(text.replace("[3, 224, 224]", "[3, 48, 48]").replace("resize = 256", "resize = 56"))
    arguments = [str(folder), "--data", str(pictures), "--weights", "none", "--epochs", "1", "--device", "cpu"]
    ended = struck("train", arguments, (START, "validation accuracy", START, "next:"), n, tmp_path)
    kept = [(folder / name).exists() for name in (WEIGHTS, KEPT, FACTS)]
    if ended.code == 0:
        assert ended.shows("next:"), (ended.when, ended.lines)
    else:
        assert ended.stopped() == STOPPED, (ended.when, ended.lines)
    assert kept == [ended.shows("validation accuracy") or all(kept)] * 3, (ended.when, kept)


@pytest.fixture(scope="module")
def tunable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with one model that only sleeps."""
    store = tmp_path_factory.mktemp("tunable")
    sleeper(store)
    with started("torchserve", tmp_path_factory.mktemp("tuned"), store) as server:
        server.management.register("standin.mar", batch_size=4, max_batch_delay=7, initial_workers=1)
        server.management.wait_ready("standin")
        yield server


@pytest.mark.server
@rounds(6, quick=1)
def test_tune(n: int, tmp_path: Path, tunable: Live) -> None:
    before = state(tunable)
    (tmp_path / "body").write_bytes(b"x")
    record = tunable.record
    arguments = [str(record.model_store / "standin.mar"), "--name", record.name, "--body", str(tmp_path / "body")]
    arguments += [
        "--out",
        str(tmp_path / "report"),
        "--seconds",
        "0.3",
        "--clients",
        "4",
        "--max-trials",
        "40",
    ]  # never done before the signal
    lines = ("timing the handler itself", "1 ", START, "2 ", "timing the handler itself", "1 ")
    ended = struck("tune", arguments, lines, n, tmp_path, SLOTWISE_HOME=os.fspath(record.state_dir.parent))
    assert ended.stopped() == STOPPED, (ended.when, ended.lines)
    assert state(tunable) == before
    assert not (tmp_path / "report").exists()
    assert list(tmp_path.glob("slotwise-*")) == []
