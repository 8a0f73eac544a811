"""`slotwise fetch`: every archive of a list in one folder, once, and nothing that is not what the list says."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slotwise.archive.build import build
from slotwise.cli import build_app
from slotwise.deploy.model_list import fill
from slotwise.errors import SlotwiseError
from tests.support.archives import unproven

HANDLER = "def handle(data, context):\n    return data and [b'ok'] * len(data)\n"
MAKE = "def make(out, weights, progress):\n    (out / 'net.bin').write_text(str(weights))\n    return {}\n"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """An archive, and the model that it is of."""
    folder = tmp_path / "models" / "toy"
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text('name = "toy"\nhandler = "serve_toy.py"\nfiles = ["net.bin"]\n')
    (folder / "serve_toy.py").write_text(HANDLER)
    (folder / "make.py").write_text(MAKE)
    return build(folder, tmp_path / "built", prove=unproven)


@pytest.fixture
def url(built: Path) -> Iterator[str]:
    """The archive's address on an HTTP server of this machine."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(built.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/{built.name}"
    server.shutdown()
    thread.join()
    server.server_close()


def listed(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "models.toml"
    path.write_text(text)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("text", ["", "[[archives]]\n"])
def test_a_list_without_archives_is_told_what_it_lacks(tmp_path: Path, text: str) -> None:
    with pytest.raises(SlotwiseError, match=r"'archives?'") as raised:
        fill(listed(tmp_path, text), tmp_path / "out")
    assert "model.toml" not in raised.value.hint


def test_a_list_that_is_not_there_is_no_model_to_start_from(tmp_path: Path) -> None:
    with pytest.raises(SlotwiseError, match=r"there is no .*nosuch\.toml") as raised:
        fill(tmp_path / "nosuch.toml", tmp_path / "out")
    assert "slotwise new" not in raised.value.hint


def test_a_file_is_copied(tmp_path: Path, built: Path) -> None:
    found = fill(listed(tmp_path, f'[[archive]]\nfile = "{built}"\n'), tmp_path / "out")
    assert [info.name for info in found] == ["toy"]
    assert sha256(tmp_path / "out" / "toy.mar") == sha256(built)


def test_a_file_is_compared_with_its_digest(tmp_path: Path, built: Path) -> None:
    with pytest.raises(SlotwiseError, match="is not the archive you want"):
        fill(listed(tmp_path, f'[[archive]]\nfile = "{built}"\nsha256 = "{"0" * 64}"\n'), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    fill(listed(tmp_path, f'[[archive]]\nfile = "{built}"\nsha256 = "{sha256(built)}"\n'), tmp_path / "out")
    assert sha256(tmp_path / "out" / "toy.mar") == sha256(built)


def test_a_download_that_fits_its_digest_is_kept_and_not_made_twice(tmp_path: Path, built: Path, url: str) -> None:
    path = listed(tmp_path, f'[[archive]]\nurl = "{url}"\nsha256 = "{sha256(built)}"\n')
    fill(path, tmp_path / "out")
    before = (tmp_path / "out" / "toy.mar").stat().st_mtime_ns
    fill(path, tmp_path / "out")
    assert (tmp_path / "out" / "toy.mar").stat().st_mtime_ns == before


def test_a_download_that_does_not_fit_leaves_nothing(tmp_path: Path, url: str) -> None:
    with pytest.raises(SlotwiseError, match="not the archive"):
        fill(listed(tmp_path, f'[[archive]]\nurl = "{url}"\nsha256 = "{"0" * 64}"\n'), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_weights_by_id_are_built_once(tmp_path: Path, built: Path) -> None:
    path = listed(tmp_path, '[[archive]]\nmodel = "toy"\nweights = "some/id"\n')
    fill(path, tmp_path / "out")
    report = json.loads((tmp_path / "out" / "toy.report.json").read_text())
    assert report["weights"] == "some/id"
    before = (tmp_path / "out" / "toy.mar").stat().st_mtime_ns
    fill(path, tmp_path / "out")
    assert (tmp_path / "out" / "toy.mar").stat().st_mtime_ns == before


@pytest.mark.parametrize("change", ["weights", "version", "input", "report", "content"])
def test_an_archive_of_other_weights_or_inputs_is_built_anew(tmp_path: Path, built: Path, change: str) -> None:
    out, folder = tmp_path / "out", tmp_path / "models" / "toy"
    text = '[[archive]]\nmodel = "toy"\nweights = "{}"\n'
    fill(listed(tmp_path, text.format("weights.txt" if change == "content" else "some/id")), out)
    wanted = {"weights": "another/id", "content": "weights.txt"}.get(change, "some/id")
    if change == "version":
        spec = folder / "model.toml"
        spec.write_text(spec.read_text() + 'version = "2.0"\n')
    elif change == "input":
        (folder / "serve_toy.py").write_text(f"{HANDLER}# changed\n")
    elif change == "report":
        (out / "toy.report.json").unlink()
    elif change == "content":
        (tmp_path / "weights.txt").write_text("other weights")
    (info,) = fill(listed(tmp_path, text.format(wanted)), out)
    assert json.loads((out / f"{info.path.stem}.report.json").read_text())["weights"] == wanted
    assert info.version == ("2.0" if change == "version" else "1.0")
    assert info.inputs["serve_toy.py"] == sha256(folder / "serve_toy.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('url = "https://example.com/a.mar"', "a url comes with its sha256"),
        (f'model = "digits"\nsha256 = "{"0" * 64}"', "a model is built here"),
        ('file = "a.mar"\nmodel = "toy"', "exactly one|one of file, url and model"),
        ("", "one of file, url and model"),
        ('file = "a.mar"\nweights = "id"', "weights belong to a model"),
        ('fil = "a.mar"', "unknown key"),
        ('file = "nowhere.mar"', "nowhere.mar"),
    ],
)
def test_a_list_with_a_fault_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SlotwiseError, match=said):
        fill(listed(tmp_path, f"[[archive]]\n{text}\n"), tmp_path / "out")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, built: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(SlotwiseError, match="cannot be written: Not a directory"):
        fill(listed(tmp_path, f'[[archive]]\nfile = "{built}"\n'), tmp_path / "out")


def test_the_command(tmp_path: Path, built: Path) -> None:
    path = listed(tmp_path, f'[[archive]]\nfile = "{built}"\n')
    result = CliRunner().invoke(build_app(), ["fetch", str(path), "--out", "out", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)[0]["file"] == "toy.mar"
