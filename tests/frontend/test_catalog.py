"""What the page learns of a model: from its archive first, then from the folder of its name, else nothing."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.archive.packaging import DIGESTS
from slotwise.backends.catalog import UNKNOWN, ModelCard, described_card, inspected_card, model_card
from slotwise.backends.remote.remote_backend import RemoteBackend
from slotwise.errors import SlotwiseError


def archive(path: Path, handler: str, files: dict[str, Any], **keys: Any) -> Path:
    with zipfile.ZipFile(path, "w") as mar:
        mar.writestr("slotwise.json", json.dumps({"model": {"handler": handler, **keys}}))
        for name, content in files.items():
            mar.writestr(name, content)
    return path


def test_the_archive_says_what_it_takes(tmp_path: Path) -> None:
    files = {"model/slotwise.json": '{"languages": {"sw": 1, "is": 2}}', "examples/one.json": "{}"}
    found = model_card(archive(tmp_path / "mine.mar", "translator", files, description="two languages"))
    assert (found.takes, found.languages, found.description) == ("translation", ["sw", "is"], "two languages")
    assert found.examples["one.json"].data == b"{}"
    drawn = model_card(archive(tmp_path / "drawn.mar", "tensor_classifier", {}, input={"shape": [1, 28, 28]}))
    assert (drawn.takes, drawn.draw, drawn.side, drawn.languages) == ("tensor", True, 28, [])


@pytest.mark.parametrize(("output", "classes"), [("", True), ("logits", True), ("y:regression", False), ("embedding", False)])
def test_what_answers_values_has_no_label(tmp_path: Path, output: str, classes: bool) -> None:
    found = model_card(archive(tmp_path / "mine.mar", "tabular", {}, output=output))
    assert found is not None
    assert found.classes is classes


def test_a_rebuilt_archive_is_read_again(tmp_path: Path) -> None:
    path = archive(tmp_path / "mine.mar", "captioner", {}, description="before")
    assert model_card(path).description == "before"
    archive(path, "captioner", {}, description="after")
    assert model_card(path).description == "after"


def test_without_an_archive_the_folder_speaks() -> None:
    found = described_card("digits")
    assert (found.takes, found.draw) == ("picture", True)
    assert "7.png" in found.examples


def test_what_nobody_knows_takes_any_file_and_is_not_sent_twice(tmp_path: Path) -> None:
    assert model_card(tmp_path / "nosuch.mar") is None
    (tmp_path / "damaged.mar").write_bytes(b"no archive")
    assert model_card(tmp_path / "damaged.mar") is None
    assert described_card("nosuch") == UNKNOWN == ModelCard(takes="file", hedge=False)
    with zipfile.ZipFile(tmp_path / "foreign.mar", "w") as mar:
        mar.writestr("handler.py", "")
    assert model_card(tmp_path / "foreign.mar") == ModelCard()


def test_the_card_is_of_what_was_inspected_and_of_what_runs(tmp_path: Path) -> None:
    path, described = archive(tmp_path / "m.mar", "captioner", {DIGESTS: "{}"}, hedge=False), hashlib.sha256(b"{}").hexdigest()
    info: Any = SimpleNamespace(path=path, content=described)
    assert inspected_card(info).takes == "picture"
    archive(path, "translator", {DIGESTS: "another"})
    with pytest.raises(SlotwiseError, match="has changed since it was looked at"):
        inspected_card(info)


@pytest.mark.parametrize("said", [True, False])  # whether its workers say what they run
def test_what_a_server_runs_keeps_its_card_though_the_file_is_gone_or_another(tmp_path: Path, said: bool) -> None:
    anything: Any = None
    backend = RemoteBackend(anything, 1.0)
    backend.upstream = SimpleNamespace(record=SimpleNamespace(model_store=tmp_path))  # type: ignore[assignment]
    got = [hashlib.sha256(text).hexdigest() if said else None for text in (b"{}", b"another")]
    live, new = ({"name": "m", "version": "1.0", "archive": "m.mar", "contents": {one} - {None}} for one in got)
    as_live, as_new = (SimpleNamespace(**one) for one in (live, new))
    path = archive(tmp_path / "m.mar", "captioner", {DIGESTS: "{}"}, hedge=False)

    def taken(model: Any) -> tuple[str, bool]:
        card = backend.card(model)
        return card.takes, card.hedge

    assert taken(as_live) == ("picture", False)
    path.unlink()
    assert taken(as_live) == ("picture", False)
    archive(path, "translator", {DIGESTS: "another"})
    if said:
        assert taken(as_live) == ("picture", False)
    assert taken(as_new) == ("translation", True)
    assert taken(SimpleNamespace(**{**live, "version": "2.0", "archive": "nosuch.mar"})) == ("file", False)
    if said:  # the file is another one's
        assert taken(as_live) == ("file", False)
