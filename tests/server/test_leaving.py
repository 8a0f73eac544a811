"""A guarded stock `image_classifier` archive on Ray and on Triton: whoever is bad in a batch of 8, the others get theirs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwise.archive.guarding.guarded import guard
from tests.server.bursts import ask
from tests.server.conftest import Live, started
from tests.server.guarded_models import CLASSIFIER, GATHERED, innocents_lost, same

HOSTS = {"ray": "ray", "triton": "pytriton"}
pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(900)]
READY_S = 300.0


def register(live: Live, store: Path, work: Path) -> None:
    """The guarded archive; the same bytes on every host."""
    archive = store / f"{CLASSIFIER.name}.mar"
    if not archive.exists():
        guard(CLASSIFIER.archive(work / CLASSIFIER.name), archive, name=CLASSIFIER.name)
    live.management.register(archive.name, **GATHERED)
    live.management.wait_ready(CLASSIFIER.name, timeout_s=READY_S)


@pytest.fixture(scope="module", params=list(HOSTS))
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    if importlib.util.find_spec(HOSTS[request.param]) is None:
        pytest.skip(f"{request.param} is not installed: make full")
    folder = tmp_path_factory.mktemp(f"leaving-{request.param}")
    (folder / "store").mkdir()
    with started(request.param, folder / "home", folder / "store") as live:
        register(live, folder / "store", folder)
        yield live


def test_for_every_position_of_a_bad_picture_the_others_get_what_they_get_alone(host: Live) -> None:
    alone = [ask(host.inference, CLASSIFIER.name, body) for body in CLASSIFIER.good]
    assert {answer.status for answer in alone} == {200}
    wrong = {i: lost for i in range(8) if (lost := innocents_lost(host, CLASSIFIER, alone, {i}, i))}
    assert wrong == {}


def test_and_what_they_get_on_torchserve(host: Live, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with started("torchserve", tmp_path / "home", tmp_path / "store") as torchserve:
        archive = f"{CLASSIFIER.name}.mar"
        (tmp_path / "store" / archive).write_bytes((host.record.model_store / archive).read_bytes())
        register(torchserve, tmp_path / "store", tmp_path)
        for body in CLASSIFIER.good[:3]:
            there, here = (ask(live.inference, CLASSIFIER.name, body) for live in (torchserve, host))
            assert same(there, here, ())
