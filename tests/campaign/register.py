"""Hostile archives registered on a real TorchServe: by `slotwise register`, and past it by the management API itself.

What slotwise refuses is refused in one line; the server, which reads zips with Java, may take some of these or not. Either
way the model beside them goes on answering, and nothing is written outside the server's own folders.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx

from slotwise.client.inference import InferenceClient
from slotwise.client.management import ManagementClient
from slotwise.deploy.deploy import deploy, obtain, registration
from slotwise.errors import SlotwiseError
from slotwise.server.lifecycle import ServerRecord
from tests.campaign.archive_faults import FAULTS
from tests.campaign.archives import Bases, one_line
from tests.campaign.cases import Case, Part
from tests.campaign.killers_place import archive_in
from tests.campaign.own_server import torchserve
from tests.campaign.tally import Tally

ANSWER_S = 120.0
ONE_WORKER = {"initial_workers": 1, "batch_size": 1}


@dataclass(frozen=True)
class Place:
    """A server with an innocent model, and what archives are made from. tree: the folder where nothing evil may appear."""

    record: ServerRecord
    bases: Bases
    tree: Path


@contextlib.contextmanager
def start(work: Path, scale: float) -> Iterator[Case]:
    """Give what tries one archive."""
    store = archive_in(work)
    (work / "made").mkdir()
    bases = Bases.made(work / "made")
    with torchserve(work / "home", store) as record:
        with ManagementClient(record) as client:
            client.register("killers.mar", **ONE_WORKER)
            client.wait_ready("killers", 1, timeout_s=ANSWER_S)
        place = Place(record, bases, work)
        yield lambda i, draw, tally: try_case(place, i, draw, tally)


def try_case(place: Place, i: int, draw: Random, tally: Tally) -> None:
    """One archive, both ways; then the innocent model must answer."""
    archive = place.record.model_store / "sent.mar"
    archive.write_bytes(draw.choice(FAULTS)(draw, place.bases.choice(draw, i)))
    known = _names(place)
    try:
        _by_command(place, archive, tally)
        _past_it(place, archive, i, tally)
    finally:
        _take_away(place, known)
        archive.unlink(missing_ok=True)
    tally.requests += 1
    tally.innocents += 1
    with InferenceClient(place.record) as client:
        answer = client.predict("killers", b"%d" % i)
    if answer.status_code != 200 or answer.json() != {"answer": 2.0 * i + 1}:
        tally.fail(i, "lost", f"the model beside it: {answer.status_code} {answer.text[:200]}")
    stray = [path for path in place.tree.rglob("*evil*") if place.record.tmp_dir not in path.parents]
    for path in stray:
        tally.fail(i, "wrong", f"{path.relative_to(place.tree)} was written")
        path.unlink()


def _by_command(place: Place, archive: Path, tally: Tally) -> None:
    """What `slotwise register sent.mar` does."""
    tally.requests += 1
    try:
        info = obtain(str(archive), place.record.model_store)
        profile = place.record.effective_profile()
        settings = registration(info, profile, place.record.overrides, place.record.kind) | ONE_WORKER
        with ManagementClient(place.record) as client:
            deploy(client, info, settings)
    except SlotwiseError as error:
        one_line(error)
        tally.refused += 1


def _past_it(place: Place, archive: Path, i: int, tally: Tally) -> None:
    """What anybody with the management token could do without slotwise."""
    tally.requests += 1
    with ManagementClient(place.record) as client:
        try:
            client.register(archive.name, name=f"raw{i}", **ONE_WORKER)
        except SlotwiseError:
            tally.refused += 1
        except httpx.HTTPError as error:
            tally.fail(i, "hangs", f"the management API: {error!r}")


def _names(place: Place) -> set[str]:
    with ManagementClient(place.record) as client:
        return {model.name for model in client.list()}


def _take_away(place: Place, known: set[str]) -> None:
    """Unregister what was registered."""
    with ManagementClient(place.record) as client:
        for model in client.list():
            if model.name not in known:
                with contextlib.suppress(SlotwiseError):
                    client.unregister(model.name)


PART = Part("register", "hostile archives registered on TorchServe, by slotwise and past it", 50, start, 600.0, least=10)
