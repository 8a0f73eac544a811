"""What all tests share."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from httpx import _config

from slotwise.profiles import ports

for part in ("connect", "read", "write", "pool"):  # of requests without a timeout: a busy machine may stand still for 5 s
    setattr(_config.DEFAULT_TIMEOUT_CONFIG, part, 60.0)

number, processes = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:], os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
ports.FREE = ports.FREE[int(number) :: int(processes)]  # each process of tests has its own

os.environ["SLOTWISE_JAVA_CACHE"] = "0"  # made and used where a test says so
HIDDEN = Path(__file__).resolve().parents[1] / ".slotwise"
os.environ["MPLCONFIGDIR"] = str(HIDDEN / "matplotlib")  # else in the user's home
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(HIDDEN / "torchinductor")  # else in /tmp, and left there
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # else threads spin while they wait, on cores that the other processes need
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # it would keep a database in the user's home

pytest.register_assert_rewrite("tests.support", "tests.server.contract")
pytest_plugins = ["tests.support.groups", "tests.support.seed", "tests.support.untried"]


def pytest_sessionstart() -> None:
    """Where C code ends a process of tests, pytest says where: a front within would say it to what is captured, and lost."""
    faulthandler.enable = lambda *_, **__: None  # type: ignore[assignment]


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays: each look for garbage among it would take a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What builds and servers keep is in a folder of the test's own."""
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))


@pytest.fixture
def no_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No build proves that its model keeps rows apart: each proof takes up to ten seconds."""
    monkeypatch.setattr("slotwise.archive.build.prove_archive", lambda *_: None)


@pytest.fixture
def quiet() -> Iterator[None]:
    """No log: thousands of errors are caught, and each would be logged with its traceback."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def logging_stays_on() -> Iterator[None]:
    """No test leaves logging switched off: what the later ones expect in the log would not be there."""
    before = {one: one.level for one in (logging.root, *logging.root.handlers)}  # below which they hear nothing
    yield
    loggers = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    ours = [logger for logger in loggers if logger.name.startswith("slotwise")]
    off = [logger.name for logger in ours if logger.disabled or not logger.propagate]
    for name in off:
        logging.getLogger(name).disabled, logging.getLogger(name).propagate = False, True
    disabled, after = logging.root.manager.disable, {one: one.level for one in before}
    logging.disable(logging.NOTSET)
    for one, level in before.items():
        one.setLevel(level)
    assert (off, disabled, after) == ([], logging.NOTSET, before)
