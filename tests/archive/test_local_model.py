"""An archive that answers without a server: in a child process, with its own copy of the worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slotwise import archive
from slotwise.archive.build import build, extract
from slotwise.errors import SlotwiseError

HANDLER = """
import os
import slotwise.worker
from slotwise.worker import BadRequest, BatchHandler

class Echo(BatchHandler):
    def load(self, model_dir, settings):
        print("what a handler prints is no answer")
        self.size = settings.batch_size
        return lambda rows: rows

    def decode(self, body, headers):
        if body == b"no":
            raise BadRequest("no")
        return [{"body": body.decode(), "kind": headers.get("x-kind"), "code": slotwise.worker.__file__, "here": os.getcwd()}]

    def collate(self, items):
        return items

    def encode(self, output, item):
        return {**output, "size": self.size}

handle = Echo.entry_point()
"""


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    folder = tmp_path / "echo"
    folder.mkdir()
    (folder / "model.toml").write_text('name = "echo"\nhandler = "echo.py"\n')
    (folder / "echo.py").write_text(HANDLER)
    return build(folder, tmp_path)


def test_an_archive_answers_with_its_own_worker(echo: Path) -> None:
    with archive.load(echo, batch_size=4) as model:
        first, second, third = model.answer([b"one", b"no", (b"three", {"X-Kind": "odd"})])
        folder = Path(model.folder.name)
        assert folder.is_dir()
    assert (first.status, second.status, third.status) == (200, 400, 200)
    said = first.json()
    assert (said["body"], said["size"], third.json()["kind"]) == ("one", 4, "odd")
    assert Path(said["code"]).is_relative_to(said["here"]), "the archive's copy, not the installed one"
    assert second.json()["error"]["message"] == "no"
    assert first.headers["x-batch-size"] == "3"
    assert model.child.poll() is not None
    assert not folder.exists()


def test_a_started_model_can_start_again_with_another_batch_size(echo: Path) -> None:
    with archive.load(echo) as model:
        assert model.answer([b"x"])[0].json()["size"] == 8
        model.start(2)
        assert model.answer([b"x"])[0].json()["size"] == 2
        answers, times = model.timed([b"x", b"y", b"z"], 2, 0.05)
        assert len(answers) == 2
        assert all(time["total_ms"] > 0 for time in times)


def test_an_archive_of_an_earlier_release_says_so() -> None:
    old = Path(__file__).parents[1] / "fixtures" / "digits-0.1.0.mar"
    with pytest.raises(SlotwiseError, match="carries no worker that answers without a server"):
        archive.load(old)


def test_a_handler_that_does_not_start_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "sad"
    folder.mkdir()
    (folder / "model.toml").write_text('name = "sad"\nhandler = "sad.py"\n')
    (folder / "sad.py").write_text(HANDLER.replace('print("what', 'raise FileNotFoundError("no weights") #'))
    with pytest.raises(SlotwiseError, match="FileNotFoundError: no weights"):
        archive.load(build(folder, tmp_path))


def test_the_archive_says_what_its_worker_can(echo: Path, tmp_path: Path) -> None:
    settings = json.loads((extract(echo, tmp_path / "x") / "slotwise.json").read_text())
    assert settings["worker"] == 2
