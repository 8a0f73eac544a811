"""What deployments of other people's are started with."""

from __future__ import annotations

import pytest

from tests.support.deployments import OURS, TORCHSERVE


@pytest.fixture(
    scope="module",
    params=[OURS, pytest.param(TORCHSERVE, marks=[pytest.mark.long, pytest.mark.timeout(600)])],
    ids=["ours", "torchserve"],
)
def program(request: pytest.FixtureRequest) -> str:
    """The word that starts a deployment: ours, and in the long run TorchServe's."""
    return str(request.param)
