"""What `slotwise new --kind KIND` writes builds and answers as it is."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from slotwise.archive.build import build
from slotwise.archive.scaffold.new import WRITERS, Kind, new
from slotwise.errors import SlotwiseError
from tests.worker.serving import Served

pytest.importorskip("onnx")
JSON, CSV = {"content-type": "application/json"}, {"content-type": "text/csv"}


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    files = new(str(tmp_path / "mine"), kind=request.param)
    assert files
    assert all(file.is_file() for file in files)
    return Served.of(build(tmp_path / "mine", tmp_path / "store"), {})


def example(tmp_path: Path, name: str) -> bytes:
    return (tmp_path / "mine" / name).read_bytes()


@pytest.mark.parametrize(
    "served",
    ["tabular", pytest.param("sklearn", marks=pytest.mark.skipif(not find_spec("skops"), reason="skops is not installed"))],
    indirect=True,
)
def test_rows_of_a_table_are_answered(served: Served, tmp_path: Path) -> None:
    one, several, wrong = served.ask(
        [example(tmp_path, "row.json"), example(tmp_path, "rows.csv"), b'{"rain_mm": 1, "season": "may"}'], [JSON, CSV, JSON]
    )
    assert one.value["label"] == "yes"
    assert [row["label"] for row in several.value] == ["yes", "no"]
    assert wrong.code == 422


@pytest.mark.parametrize("served", ["onnx"], indirect=True)
def test_named_tensors_are_answered_by_name(served: Served, tmp_path: Path) -> None:
    one, several = served.ask([example(tmp_path, "pair.json"), example(tmp_path, "pairs.json")], [JSON] * 2)
    assert one.value == {"alike": [2.5], "sum": [1.5, 0.5, 3.0, 0.5]}
    assert several.value[1] == {"alike": [0.0], "sum": [1.0] * 4}


@pytest.mark.parametrize("served", ["pipeline"], indirect=True)
def test_a_picture_is_cut_and_each_part_told(served: Served, tmp_path: Path) -> None:
    flag, wrong, red = served.ask([example(tmp_path, "flag.png"), b"no picture", example(tmp_path, "red.png")])
    assert [part["answer"]["label"] for part in flag.value] == ["red", "green", "blue"]
    assert [(part["from"], part["to"]) for part in flag.value] == [(0, 32), (32, 64), (64, 96)]
    assert wrong.code in (400, 415)
    assert [part["answer"]["label"] for part in red.value] == ["red"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("served", ["text"], indirect=True)
def test_a_text_is_classified(served: Served, tmp_path: Path) -> None:
    good, bad = served.ask([example(tmp_path, "examples/good.txt"), example(tmp_path, "examples/bad.txt")])
    assert (good.value["label"], bad.value["label"]) == ("good", "bad")


def test_every_kind_is_written(tmp_path: Path) -> None:
    kinds: list[Kind] = ["picture", *WRITERS]  # type: ignore[list-item]
    for kind in kinds:
        files = new(str(tmp_path / kind), kind=kind)
        assert tmp_path / kind / "model.toml" in files
        assert json.dumps(kind)[1:-1] in (tmp_path / kind / "model.toml").read_text().splitlines()[0]  # the path to build


@pytest.mark.parametrize("path", ["two\nlines/mine", "half\udcff/mine"])
def test_a_path_that_no_text_holds_is_one_line(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SlotwiseError, match="cannot be written into a text"):
        new(path, kind="stream")
    assert list(tmp_path.iterdir()) == []
