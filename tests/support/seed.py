"""What chance gives in tests: a seed a day, printed at the beginning of a run; $SLOTWISE_SEED draws the same again."""

from __future__ import annotations

import os
import random
import time

import pytest
from hypothesis import HealthCheck, Phase, settings

VARIABLE = "SLOTWISE_SEED"
SEED = int(os.environ.setdefault(VARIABLE, time.strftime("%Y%m%d", time.gmtime())))  # the processes of a run inherit it

PARTS = 10  # of a long run of histories


def days_seeds(part: int, each: int) -> range:
    """The seeds of one of the PARTS of a long run, `each` of them: others each day, and none of the first million."""
    first = SEED * 1_000_000 + part * each
    return range(first, first + each)


# No database: what a run draws depends on the seed alone.
settings.register_profile(
    "seeded", deadline=None, database=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "mutants", settings.get_profile("seeded"), max_examples=20, phases=[Phase.explicit, Phase.generate]
)  # a failure is all that mutation testing asks for, not the least example of it
settings.load_profile("seeded")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis draws from the seed, too, unless `--hypothesis-seed` says another."""
    config.option.hypothesis_seed = config.option.hypothesis_seed or str(SEED)


def pytest_report_header() -> str:
    return f"seed: {VARIABLE}={SEED}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A quiet run has no header, and whoever reads of a failure wants the line."""
    if not terminalreporter.config.option.collectonly:
        terminalreporter.line(f"what chance gave comes again with {VARIABLE}={SEED}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test draws the same whichever tests ran before it."""
    random.seed(f"{SEED} {item.nodeid}")
