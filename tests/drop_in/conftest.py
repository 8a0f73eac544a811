"""What deployments of other people's are started with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.deployments import OURS, TORCHSERVE, Deployment
from tests.support.torchserve_client import TorchServeClient, client_of


@pytest.fixture(
    scope="module",
    params=[OURS, pytest.param(TORCHSERVE, marks=[pytest.mark.long, pytest.mark.timeout(600)])],
    ids=["ours", "torchserve"],
)
def program(request: pytest.FixtureRequest) -> str:
    """The word that starts a deployment: ours, and in the long run TorchServe's."""
    return str(request.param)


@pytest.fixture(scope="module")
def client(deployment: Deployment) -> Iterator[TorchServeClient]:
    """Who asks the module's own deployment."""
    with client_of(deployment.ports, deployment.folder) as one:
        yield one
