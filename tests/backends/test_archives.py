"""Archives on the local host: one of today, one of 0.2.0 that knows no frames, and a stranger's that is guarded."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from slotwise.archive.build import build
from slotwise.archive.guarding.foreign import need_worker
from slotwise.archive.guarding.guarded import guard
from slotwise.archive.inspection import extract, inspect, unpacked
from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.prints import FilePrints
from slotwise.backends.local.served_model import ServedModel
from slotwise.errors import SlotwiseError
from slotwise.host.model_host import HOST
from tests.archive.foreign_archives import torch_archive
from tests.archive.test_renew import changed
from tests.server.conftest import HERE

FIXTURES = Path(__file__).parents[1] / "fixtures"
HANDLER = """
import os
from slotwise.worker import BatchHandler

class Twice(BatchHandler):
    def load(self, model_dir, settings):
        return lambda rows: rows

    def decode(self, body, headers):
        if body == b"exit":
            os._exit(3)
        return [float(body)]

    def collate(self, items):
        return items

    def predict(self, inputs):
        return [2 * item for item in inputs]

handle = Twice.entry_point()
"""


STRANGER = """
def handle(data, context):
    if data is None:
        return None
    return [str(2 * float(row.get("data") or row.get("body"))) for row in data]
"""


def served(archive: Path, folder: Path) -> ModelSettings:
    return ModelSettings(
        name="m",
        version="1",
        archive=archive,
        model_dir=extract(archive, folder / "extracted"),
        environ={**os.environ, "SLOTWISE_PROFILE": "cpu"},
        prints=FilePrints(folder / "log"),
        batch_size=4,
        repeatable=True,
    )


def answers(settings: ModelSettings, bodies: Sequence[bytes], headers: dict[str, str]) -> list[BackendAnswer | BaseException]:
    """What each of these requests gets, all sent at once."""

    async def asked() -> list[BackendAnswer | BaseException]:
        model = ServedModel(settings)
        model.scale(1)
        try:
            requests = [
                BackendRequest(
                    "m", time.monotonic() + 120, f"r{i}", "/predictions/m?a=b", {**headers, "x-request-id": f"r{i}"}, body
                )
                for i, body in enumerate(bodies)
            ]
            return await asyncio.gather(*map(model.answer, requests), return_exceptions=True)
        finally:
            await model.close(10)

    return asyncio.run(asked())


@pytest.fixture
def today(tmp_path: Path) -> Path:
    """An archive of today that doubles a number."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "twice.py").write_text(HANDLER)
    (tmp_path / "model" / "model.toml").write_text('name = "twice"\nhandler = "twice.py"\n')
    (tmp_path / "store").mkdir()
    return build(tmp_path / "model", tmp_path / "store")


def test_an_archive_of_today_answers_in_frames(today: Path, tmp_path: Path) -> None:
    settings = served(today, tmp_path)
    assert settings.module == "slotwise.worker.hosts.framed"
    bodies = [b"1", b"no", b"exit", b"4", b"5", b"6"]
    good, bad, ended, *others = answers(settings, bodies, {"content-type": "text/plain"})
    assert isinstance(good, BackendAnswer)
    assert (good.status, good.body) == (200, b"2.0")
    assert isinstance(bad, BackendAnswer)
    assert bad.status in (400, 500)
    assert isinstance(ended, Refused)
    assert [getattr(other, "body", other) for other in others] == [b"8.0", b"10.0", b"12.0"]


def test_an_archive_of_an_earlier_release_answers_through_pipes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = served(FIXTURES / "sums-0.2.0.mar", tmp_path)
    assert settings.module == ""
    given = answers(settings, [b"[1, 2, 3]", b"[30, 40, 50]", b"no"], {"content-type": "application/json"})
    assert [getattr(one, "status", one) for one in given] == [200, 200, 400]
    assert [json.loads(one.body)["mean"] for one in given[:2]] == [2.0, 40.0]  # type: ignore[union-attr]
    assert "slotwise renew" in caplog.text


def test_what_was_registered_is_served_whatever_takes_its_place(today: Path, tmp_path: Path) -> None:
    sums = Path(shutil.copy(FIXTURES / "sums-0.2.0.mar", tmp_path / "sums.mar"))
    settings, info = served(sums, tmp_path), inspect(sums)
    shutil.copy(today, sums)  # nobody has registered this one
    (answer,) = answers(settings, [b"[1, 2, 3]"], {"content-type": "application/json"})
    assert isinstance(answer, BackendAnswer)
    assert json.loads(answer.body)["mean"] == 2.0
    with pytest.raises(SlotwiseError, match="has changed since"):
        unpacked(info, tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()
    assert (unpacked(inspect(sums), tmp_path / "unpacked") / "twice.py").is_file()


def test_a_dead_engine_of_an_earlier_release_costs_nobody_but_who_killed_it(tmp_path: Path) -> None:
    archive = Path(shutil.copy(FIXTURES / "sums-0.2.0.mar", tmp_path / "sums.mar"))
    settings = served(changed(archive, sums__py=(HERE / "handlers" / "faults.py").read_text("utf-8")), tmp_path)
    first, killer, *others = answers(settings, [b"1", b"die", b"2", b"3", b"4", b"5"], {"content-type": "text/plain"})
    assert [json.loads(one.body)["answer"] for one in (first, *others)] == [3.0, 5.0, 7.0, 9.0, 11.0]  # type: ignore[union-attr]
    assert getattr(killer, "status", 0) == 500


def test_a_guarded_stranger_answers_in_frames(tmp_path: Path) -> None:
    theirs = torch_archive(tmp_path, STRANGER, function="handle")
    settings = served(guard(theirs, tmp_path / "guarded.mar"), tmp_path)
    assert settings.module == "_slotwise_guard.hosts.framed"
    first, bad, last = answers(settings, [b"1", b"no", b"3"], {"content-type": "text/plain"})
    assert [getattr(one, "body", one) for one in (first, last)] == [b"2.0", b"6.0"]
    assert getattr(bad, "status", 500) >= 400


def test_only_an_archive_whose_worker_needs_no_server_is_taken() -> None:
    info = inspect(FIXTURES / "digits-0.1.0.mar", need_digests=False)
    with pytest.raises(SlotwiseError, match="carries no worker that runs on this host"):
        need_worker(info, "this host", HOST)
