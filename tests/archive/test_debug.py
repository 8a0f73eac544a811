"""`slotwise debug` runs one request hook by hook: what each made, or the true error with its file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from slotwise.archive.build import build
from slotwise.archive.debugging import debug
from slotwise.cli import build_app
from slotwise.errors import SlotwiseError
from slotwise.worker.hosts.debugging import described

HANDLER = """\
import json
import numpy
from slotwise.worker import BadRequest, BatchHandler, Unprocessable


class Adder(BatchHandler):
    def load(self, model_dir, settings):
        print("this goes to the terminal")
        return lambda rows: rows.sum(axis=1)  # [b, 3] -> [b]

    def decode(self, body, headers):
        rows = json.loads(body)
        return [Unprocessable("no numbers") if not row else numpy.array(row, "float32") for row in rows]

    def encode(self, output, item):
        return {"sum": 1 / float(output)}


handle = Adder.entry_point()
"""


@pytest.fixture
def adder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "adder"
    folder.mkdir()
    (folder / "adder.py").write_text(HANDLER)
    (folder / "model.toml").write_text('name = "adder"\nhandler = "adder.py"\n')
    return folder


def stages(folder: Path, body: str, **headers: str) -> dict[str, dict[str, Any]]:
    (folder / "body.json").write_text(body)
    said: list[dict[str, Any]] = []
    found = debug(str(folder), folder / "body.json", headers, "cpu", said.append)
    assert said == found
    return {one["stage"]: one for one in found}


@pytest.mark.parametrize("groups", ["[[0, 7]]", "[[0]]", "[[0, 0, 1]]", "None", '"ab"'])
def test_groups_that_lose_or_repeat_an_item_are_named(adder: Path, groups: str) -> None:
    text = HANDLER.replace("    def encode", f"    def groups(self, items):\n        return {groups}\n\n    def encode")
    (adder / "adder.py").write_text(text)
    found = stages(adder, "[[1, 2, 3], [4, 5, 6]]")
    assert "Error: " in found["groups"]["error"]
    assert found["answer"]["made"][1].count('"code": 500') == 2


def test_each_hook_says_what_it_made(adder: Path) -> None:
    found = stages(adder, "[[1, 2, 3], [], [4, 5, 6]]")
    assert list(found) == ["import", "load", "decode", "groups", "collate", "predict", "outputs", "encode", "respond", "answer"]
    assert found["decode"]["made"] == [
        "3 items", "item 0: float32 [3], from 1 to 3", "item 1: the error 422: no numbers", "item 2: float32 [3], from 4 to 6"
    ]  # fmt: skip
    assert found["collate"]["made"] == ["float32 [2, 3], from 1 to 6"]
    assert found["predict"]["made"] == ["float32 [2], from 6 to 15"]
    assert found["answer"]["status"] == 200
    assert '"sum": 0.1666' in found["answer"]["made"][1]


@pytest.mark.parametrize(
    ("body", "stage", "error", "code", "status"),
    [
        ("nothing", "decode", "adder.py, line 12: JSONDecodeError", "rows = json.loads(body)", 400),
        ("[[1, 2], [3]]", "collate", "ValueError: all input arrays must have the same shape", "", 200),
        ("[[1, 2, -3]]", "encode", "adder.py, line 16: ZeroDivisionError", 'return {"sum": 1 / float(output)}', 500),
    ],
)
def test_the_true_error_with_its_line(adder: Path, body: str, stage: str, error: str, code: str, status: int) -> None:
    found = stages(adder, body)
    raised = next(one for one in found.values() if "error" in one)
    assert (raised["stage"], raised["code"], found["answer"]["status"]) == (stage, code, status)
    assert error in raised["error"]


def test_an_error_that_an_author_made_of_another_names_both(adder: Path) -> None:
    text = HANDLER.replace("rows = json.loads(body)", 'try:\n            rows = json.loads(body)\n        except ValueError:\n'
                           '            raise BadRequest("send lists") from None')  # fmt: skip
    (adder / "adder.py").write_text(text)
    raised = stages(adder, "{")["decode"]
    assert raised["error"] == "adder.py, line 15: BadRequest: send lists"
    assert raised["because"][0].startswith("adder.py, line 13: JSONDecodeError")
    assert raised["status"] == 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "stage", "error"),
    [
        (("import numpy", "import numpy_that_nobody_has"), "import", "adder.py, line 2: ModuleNotFoundError"),
        (("    def encode", "    def def encode"), "import", "adder.py, line 15: SyntaxError"),
        (('print("this', 'raise OSError("this'), "load", "adder.py, line 8: OSError: this goes to the terminal"),
    ],
)
def test_a_handler_that_does_not_start(adder: Path, broken: tuple[str, str], stage: str, error: str) -> None:
    (adder / "adder.py").write_text(HANDLER.replace(*broken))
    found = stages(adder, "[[1, 2, 3]]")
    assert list(found)[-1] == stage
    assert found[stage]["error"].startswith(error)


def test_the_command_and_what_it_cannot_do(adder: Path, tmp_path: Path) -> None:
    (adder / "body.json").write_text("[[1, 2, 3]]")
    archive = build(adder, tmp_path / "store", prove=lambda folder, spec: None)
    done = CliRunner().invoke(build_app(), ["debug", str(archive), str(adder / "body.json")])
    assert done.exit_code == 0, done.output
    assert "collate   float32 [1, 3], from 1 to 3" in done.output
    (adder / "body.json").write_text("[[1, 2, -3]]")
    done = CliRunner().invoke(build_app(), ["debug", str(archive), str(adder / "body.json"), "--header", "accept: text/plain"])
    assert done.exit_code == 1
    assert "encode    RAISED adder.py, line 16: ZeroDivisionError: " in done.output
    with pytest.raises(SlotwiseError, match="there is no file"):
        debug(str(archive), adder / "none", {}, "cpu", lambda told: None)


def test_values_are_told_by_type_shape_and_range() -> None:
    odd = np.array([[1, np.nan], [np.inf, -2]], "float32")
    assert described(odd) == ["float32 [2, 2], from -2 to 1, 2 of 4 NaN or infinite"]
    both = described({"a": np.zeros(2, np.int64), "b": "text"})
    assert both == ["dict of 2", "  a: int64 [2], from 0 to 0", "  b: str of 4: 'text'"]
    assert described([1, "a", None]) == ["list of 3: [1, 'a', None]"]
    assert described(b"ab") == ["bytes of 2: b'ab'"]
    assert described([np.zeros(1)] * 9)[-1] == "  and 3 more"
    assert described(np.full(3, np.nan)) == ["float64 [3], 3 of 3 NaN or infinite"]
    assert described(np.zeros((0, 3)))[0] == "float64 [0, 3]"
