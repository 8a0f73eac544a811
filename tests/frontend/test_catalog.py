"""What the page learns of a model: from its archive first, then from the folder of its name, else nothing."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from slotwise.frontend.catalog import ModelCard, model_card


def archive(path: Path, handler: str, files: dict[str, Any], **keys: Any) -> Path:
    with zipfile.ZipFile(path, "w") as mar:
        mar.writestr("slotwise.json", json.dumps({"model": {"handler": handler, **keys}}))
        for name, content in files.items():
            mar.writestr(name, content)
    return path


def test_the_archive_says_what_it_takes(tmp_path: Path) -> None:
    files = {"model/slotwise.json": '{"languages": {"sw": 1, "is": 2}}', "examples/one.json": "{}"}
    found = model_card("mine", archive(tmp_path / "mine.mar", "translator", files, description="two languages"))
    assert (found.takes, found.languages, found.description) == ("translation", ["sw", "is"], "two languages")
    assert found.examples["one.json"].data == b"{}"
    drawn = model_card("drawn", archive(tmp_path / "drawn.mar", "tensor_classifier", {}, input={"shape": [1, 28, 28]}))
    assert (drawn.takes, drawn.draw, drawn.side, drawn.languages) == ("tensor", True, 28, [])


def test_a_rebuilt_archive_is_read_again(tmp_path: Path) -> None:
    path = archive(tmp_path / "mine.mar", "captioner", {}, description="before")
    assert model_card("mine", path).description == "before"
    archive(path, "captioner", {}, description="after")
    assert model_card("mine", path).description == "after"


def test_without_an_archive_the_folder_speaks(tmp_path: Path) -> None:
    found = model_card("digits", tmp_path / "digits.mar")
    assert (found.takes, found.draw) == ("picture", True)
    assert "7.png" in found.examples


def test_what_nobody_knows_takes_any_file(tmp_path: Path) -> None:
    assert model_card("nosuch", tmp_path / "nosuch.mar") == ModelCard()
    (tmp_path / "foreign.mar").write_bytes(b"no archive")
    assert model_card("foreign", tmp_path / "foreign.mar") == ModelCard()
