"""What all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

os.environ["SLOTWISE_JAVA_CACHE"] = "0"  # made and used where a test says so

LONGEST = ("tests/server/test_replicas.py", "tests/server/test_tune.py", "tests/server/test_gateway.py", "tests/test_docs.py")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: at the end none of two processes is left alone with them."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
