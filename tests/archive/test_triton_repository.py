"""A model repository for Triton: what stands in it, and what its model.py checks. tests/server/test_triton.py loads it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.build import build
from slotwise.archive.guarding.guarded import guard
from slotwise.archive.inspection import inspect
from slotwise.archive.triton.repository import export
from slotwise.errors import SlotwiseError
from slotwise.profiles.profile import Profile, load_profile
from slotwise.profiles.triton_config import config_pbtxt
from tests.archive.foreign_archives import FUNCTION, torch_archive
from tests.server.conftest import build_handler
from tests.worker import triton_backend as backend
from tests.worker.triton_backend import InferenceRequest

FIXTURES = Path(__file__).parents[1] / "fixtures"


def profile(**changes: Any) -> Profile:
    return load_profile("cpu", environ={}, cores=0).explicitly(changes, "test")


def test_the_config_is_the_profiles() -> None:
    text = config_pbtxt("mnist", profile(batch_size=13, max_batch_delay_ms=0.15, initial_workers=2), "f00", gpu=False)
    for line in (
        'name: "mnist"',
        "max_batch_size: 13",
        "preferred_batch_size: [ 13 ]",
        "max_queue_delay_microseconds: 150",
        "instance_group [ { count: 2 kind: KIND_CPU } ]",
        'key: "archive_sha256" value: { string_value: "f00" }',
        'key: "SLOTWISE_PROFILE" value: { string_value: "cpu" }',
    ):
        assert line in text
    assert "model_warmup" not in text
    assert "queue_policy" not in text  # it makes Triton leave requests lying for half a second
    alone = config_pbtxt("mnist", profile(batch_size=1), "f00", gpu=True, warm_up_bytes=5)
    assert "preferred_batch_size" not in alone
    assert "KIND_GPU" in alone
    assert "dims: [ 5 ] input_data_file" in alone


def test_texts_are_escaped() -> None:
    text = config_pbtxt('a"b\\c\nü', profile(), "f00", gpu=False)
    assert 'name: "a\\"b\\\\c\\012\\303\\274"' in text


def test_an_exported_model_answers_and_a_changed_archive_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = inspect(build_handler("faults", tmp_path, tmp_path / "work"))
    folder = export(info, profile(), tmp_path / "repository", name="other")
    folder = export(info, profile(batch_size=4), tmp_path / "repository", name="other")  # again: the old one is replaced
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == [
        "1/model.mar",
        "1/model.py",
        "config.pbtxt",
    ]
    assert [path.name for path in folder.parent.iterdir()] == ["other"]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)  # type: ignore[arg-type]
    module = imported(folder / "1" / "model.py")
    sha256 = re.search(r'"archive_sha256" value: { string_value: "(\w+)"', (folder / "config.pbtxt").read_text())
    assert sha256 is not None
    arguments = backend.arguments(folder, archive_sha256=sha256[1])
    monkeypatch.setattr(sys, "path", [*sys.path])
    model = module.TritonPythonModel()
    model.initialize(arguments)
    try:
        told = [response.told() for response in model.execute([InferenceRequest(b"1"), InferenceRequest(b"text")])]
        assert [status for status, _, _ in told] == [200, 400]
    finally:
        model.finalize()
    assert not model.folder.exists()
    archive = folder / "1" / "model.mar"
    archive.unlink()
    shutil.copyfile(FIXTURES / "digits-0.1.0.mar", archive)
    with pytest.raises(backend.TritonModelException, match="is not the archive that was exported"):
        module.TritonPythonModel().initialize(arguments)


def test_what_is_written_over_an_archive_later_changes_no_export(tmp_path: Path) -> None:
    archive = build_handler("faults", tmp_path, tmp_path / "work")
    exported = export(info := inspect(archive), profile(), tmp_path / "repository") / "1" / "model.mar"
    before = archive.read_bytes()
    with archive.open("r+b") as file:  # as `cp new.mar NAME.mar` does
        file.write(b"another")
    assert exported.read_bytes() == before
    with pytest.raises(SlotwiseError, match=r"faults\.mar was written while it was exported"):
        export(info, profile(), tmp_path / "repository")
    assert exported.read_bytes() == before


def test_only_an_archive_that_can_is_exported(tmp_path: Path) -> None:
    earlier = tmp_path / "digits.mar"
    shutil.copyfile(FIXTURES / "digits-0.1.0.mar", earlier)
    with pytest.raises(SlotwiseError, match="no worker that runs on Triton") as refused:
        export(inspect(earlier), profile(), tmp_path / "repository")
    assert refused.value.hint == "build it again: `slotwise build digits`"
    theirs = torch_archive(tmp_path, FUNCTION)
    with pytest.raises(SlotwiseError, match="another tool's"):
        export(inspect(theirs, need_digests=False), profile(), tmp_path / "repository")
    assert not (tmp_path / "repository" / "theirs").exists()
    guarded = export(inspect(guard(theirs)), profile(), tmp_path / "repository")
    assert (guarded / "1" / "model.mar").is_file()


@pytest.mark.parametrize("name", ["../victim", "/tmp/victim", "..", "a/b", ".hidden", "", "a\nb", "x" * 300], ids=range(8))
def test_a_model_is_never_exported_outside_its_repository(tmp_path: Path, name: str) -> None:
    """A folder of the model's name is replaced: one named ../victim by its archive's manifest was deleted."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("precious")
    info = inspect(build_handler("faults", tmp_path, tmp_path / "work"))
    named = replace(info, manifest={**info.manifest, "model": {**info.manifest["model"], "modelName": name}})
    with pytest.raises(SlotwiseError, match="cannot be a model's name"):
        export(named, profile(), tmp_path / "repository")
    assert (tmp_path / "victim" / "file").read_text() == "precious"
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize("file", ["model.toml", "config.pbtxt", "both", "a link"])
def test_only_an_earlier_export_is_replaced(tmp_path: Path, file: str) -> None:
    """`export triton colours --out .` deleted the model's own folder."""
    info = inspect(build_handler("faults", tmp_path, tmp_path / "work"))
    repository, folder = tmp_path / "repository", tmp_path / "repository" / "faults"
    if file == "both":
        export(info, profile(), repository)
    elif file == "a link":
        (tmp_path / "elsewhere").mkdir(parents=True)
        repository.mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("model.toml" if file == "both" else file)).write_text("precious")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(SlotwiseError, match="no export wrote it"):
        export(info, profile(), repository)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert os.listdir(repository) == ["faults"]


def test_an_export_that_fails_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = inspect(build_handler("faults", tmp_path, tmp_path / "work"))
    folder = export(info, profile(), tmp_path / "repository")
    rename = Path.rename

    def fails(path: Path, target: Path) -> Path:
        if path.suffix == ".partial":
            raise OSError("no")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="no"):
        export(info, profile(batch_size=4), folder.parent)
    assert os.listdir(folder.parent) == ["faults"]
    assert (folder / "1" / "model.mar").is_file()


def test_an_archive_that_is_a_link_is_exported_whole(tmp_path: Path) -> None:
    archive = build_handler("faults", tmp_path / "real", tmp_path / "work")
    (tmp_path / "store").mkdir()
    link = tmp_path / "store" / archive.name
    link.symlink_to(Path("..") / "real" / archive.name)
    exported = export(inspect(link), profile(), tmp_path / "repository") / "1" / "model.mar"
    assert not exported.is_symlink()
    assert exported.read_bytes() == archive.read_bytes()


def test_an_example_warms_the_model_up(tmp_path: Path) -> None:
    folder = export(inspect(build("digits", tmp_path)), profile(), tmp_path / "repository")
    size = (folder / "warmup" / "example").stat().st_size
    assert f"dims: [ {size} ]" in (folder / "config.pbtxt").read_text()


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("triton_model_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
