"""An archive that answers without a server: in a child process, with its own copy of the worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slotwise import archive
from slotwise.archive.build import build
from slotwise.archive.guarding.guarded import guard
from slotwise.archive.inspection import extract
from slotwise.archive.local_model import LocalModel
from slotwise.archive.packaging import WORKER
from slotwise.errors import SlotwiseError
from slotwise.worker.hosts import messages
from tests.archive.foreign_archives import torch_archive
from tests.server.conftest import build_handler

STRANGERS = Path(__file__).parents[1] / "server" / "strangers"
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


def test_a_form_the_address_and_the_deadline_are_read_as_on_a_server(echo: Path) -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="data"; filename="x"\r\n\r\nin a form\r\n--b--\r\n'
    numbers: list[tuple[str, float, str, int | None]] = []
    with LocalModel(echo, measured=lambda *number: numbers.append(number)) as model:
        asked, cut, late = model.answer(
            [
                (form, {"Content-Type": "multipart/form-data; boundary=b"}, {"top": "3"}),
                (form[:-8], {"Content-Type": "multipart/form-data; boundary=b"}),
                (b"x", {"x-deadline-ms": "1"}),
            ]
        )
    assert asked.json()["body"] == "in a form"
    assert (cut.status, late.status) == (400, 504)
    assert ("SlotErrors", 1, "", 400) in numbers
    assert {"BatchFill", "InferenceTime"} <= {name for name, *_ in numbers}


@pytest.mark.parametrize("batch", [8, 3])
def test_a_guarded_archive_answers_without_a_server(tmp_path: Path, batch: int) -> None:
    guarded = guard(torch_archive(tmp_path, (STRANGERS / "odd.py").read_text("utf-8")), audit=1.0)
    bodies = [json.dumps({"x": x, "do": do}).encode() for x, do in enumerate(["", "bytes", "raise", "status", "exit", "mute"])]
    numbers: list[tuple[str, float, str, int | None]] = []
    with LocalModel(guarded, batch_size=batch, measured=lambda *number: numbers.append(number)) as model:
        answers = model.answer([*bodies, b"no JSON"])
        model.answer([bodies[0]])  # the audit of the first batch has run between the two
    assert [answer.status for answer in answers] == [200, 200, 500, 201, 500, 500, 400]
    assert answers[0].json() == {"doubled": 0, "id": True}
    assert (answers[1].body, answers[3].body) == (b"\1\1\1", b"made")
    assert (answers[3].content_type, answers[3].headers["x-mine"]) == ("text/plain", "3")
    assert "secret" not in "".join(str(answer.body) for answer in answers)
    counted = {name: value for name, value, *_ in numbers}
    assert counted["slotwise_audit_total"] == 3
    assert "slotwise_audit_mismatch_total" not in counted


COUNTS = """
def handle(data, context):
    if data is None:
        return
    context.metrics.add_counter("Asked", len(data))
    context.metrics.add_time("Took", 2, None, "s")
    context.metrics.add_counter("Bad", "no number")
    assert context.get_request_header(0, "X-Kind") == "odd"
    assert context.system_properties["batch_size"] == 8
    return [int(row["body"]["x"]) for row in data]
"""


def test_what_a_failed_attempt_counted_is_forgotten(tmp_path: Path) -> None:
    numbers: list[tuple[str, float, str, int | None]] = []
    about = {"x-kind": "odd", "content-type": "application/json"}
    with LocalModel(guard(torch_archive(tmp_path, COUNTS)), measured=lambda *number: numbers.append(number)) as model:
        answers = model.answer([(b'{"x": 1}', about), (b'{"x": "no"}', about), (b'{"x": 3}', about)])
    assert [(answer.status, answer.body) for answer in answers if answer.status == 200] == [(200, b"1"), (200, b"3")]
    assert sum(value for name, value, *_ in numbers if name == "Asked") == 2
    assert ("Took", 2.0, "s", None) in numbers


def test_numbers_that_nobody_can_take_cost_no_answer(echo: Path, caplog: pytest.LogCaptureFixture) -> None:
    def measured(name: str, value: float, unit: str, code: int | None) -> None:
        raise AttributeError("inc")

    with LocalModel(echo, measured=measured) as model:
        assert [model.answer([body, b"no"])[0].json()["body"] for body in (b"x", b"y")] == ["x", "y"]
        assert model.alive
    assert caplog.text.count("a number of its worker cannot be taken") == 1


def test_a_dead_engine_is_known_with_its_last_answers(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with LocalModel(build_handler("faults", tmp_path / "store", tmp_path / "work")) as model:
        assert [answer.status for answer in model.answer([b"1", b"2"])] == [200, 200]
        assert model.alive
        assert 503 in {answer.status for answer in model.answer([b"1", b"die", b"2"])}
        assert not model.alive  # however long its process takes to go


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


def test_metrics_that_an_author_replaced_cost_no_answer(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "model.toml").write_text('name = "mine"\nhandler = "mine.py"\n')
    (folder / "mine.py").write_text(HANDLER.replace("return lambda rows", "self.metrics = {}; return lambda rows"))
    numbers: list[tuple[str, float, str, int | None]] = []
    with LocalModel(build(folder, tmp_path), measured=lambda *number: numbers.append(number)) as model:
        assert [model.answer([b"x", b"no"])[0].json()["body"], model.answer([b"y"])[0].json()["body"]] == ["x", "y"]
    assert ("SlotErrors", 1, "", 400) in numbers


def test_the_archive_says_what_its_worker_can(echo: Path, tmp_path: Path) -> None:
    settings = json.loads((extract(echo, tmp_path / "x") / "slotwise.json").read_text())
    assert settings["worker"] == WORKER == messages.VERSION
