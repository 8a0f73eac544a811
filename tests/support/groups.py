"""Which tests one of the processes runs as a whole, and in which order: nothing that tests share is set up twice."""

from __future__ import annotations

import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# The groups that take longest come first: so at the end no process is left alone with one of them.
LONGEST = (
    *("mms", "torchserve", "tests/test_docs.py", "tests/server/test_gateway.py", "tests/zoo/test_training.py"),
    *("tests/server/test_watchdog.py", "tests/worker/test_translator.py", "tests/deploy/test_rollout.py"),
    *("tests/zoo/test_ants_bees.py", "tests/server/test_slips.py", "tests/browser/", "tests/archive/", "tests/server/"),
    *("tests/zoo/", "tests/frontend/", "tests/check/"),
)
APART = (  # every test starts servers of its own
    *("tests/test_docs.py", "tests/check/", "tests/server/test_serve.py"),
    "tests/campaign/test_campaign.py",
)
LABORATORY = ("benchmarks/", "tests/campaign/")  # its tests are slow ones, all of them
TRAINS = "tests/server/test_text.py"  # first of all: no other test waits for what it trains


def group(nodeid: str) -> str:
    """The tests of a kind of server that is started once a session, those of a file, or one test."""
    path, _, test = nodeid.partition("::")
    if path.startswith(APART):
        return nodeid
    kind = re.search(r"[\[-](torchserve|mms)[\]-]", test) if path.startswith("tests/server/") else None
    return kind[1] if kind else path


def place(nodeid: str) -> tuple[int, int]:
    """Its group's place among those that take longest, and its own in the group."""
    own = group(nodeid)
    among = next((i for i, long in enumerate(LONGEST) if own.startswith(long)), len(LONGEST))
    return among, -nodeid.startswith(TRAINS)


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process that has nearly nothing left the next group. (`--dist loadgroup` knows no node ids of pytest 9.)"""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.startswith(LABORATORY):
        item.add_marker("slow")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    config.option.loadscopereorder = False  # the tests are in order
    return Groups(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest groups first."""
    items.sort(key=lambda item: place(item.nodeid))
