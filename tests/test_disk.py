"""What cannot be written is known before the work, and a full disk is one line with its file system."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from slotwise.archive.guarding.guarded import guard
from slotwise.archive.scaffold.new import new
from slotwise.bench.report import write_csv
from slotwise.check.junit import write_junit
from slotwise.errors import SlotwiseError
from slotwise.files.disk import check_target, check_writable, explain, write_together
from tests.archive.foreign_archives import FUNCTION, torch_archive
from tests.support.mounts import mount


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    yield from mount(tmp_path / "small", "size=1m")


@pytest.fixture
def readonly(tmp_path: Path) -> Iterator[Path]:
    """A disk that cannot be written."""
    yield from mount(tmp_path / "readonly", "ro")


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    check_writable(tmp_path)
    check_writable(tmp_path / "not" / "yet")
    check_target(tmp_path / "figure.png")
    check_target(None)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SlotwiseError, match=r"^/proc/mine cannot be written: "):
        check_writable(Path("/proc/mine"))
    with pytest.raises(SlotwiseError, match=r"file/below cannot be written: Not a directory$"):
        check_writable(tmp_path / "file" / "below")
    with pytest.raises(SlotwiseError, match=r"is a folder$"):
        check_target(tmp_path)
    with pytest.raises(SlotwiseError, match=r"cannot be written: there is no folder .*none$"):
        check_target(tmp_path / "none" / "figure.png")
    with pytest.raises(SlotwiseError, match=r"wants 1000000000 MiB, and \w+ at /\S* has \d+ MiB left$"):
        check_writable(tmp_path, 10**9)


def test_a_read_only_disk(readonly: Path) -> None:
    with pytest.raises(SlotwiseError, match=r"archives cannot be written: Read-only file system$"):
        check_writable(readonly / "archives")


def test_a_full_disk(small: Path) -> None:
    (small / "full").write_bytes(bytes(1 << 20))
    with pytest.raises(SlotwiseError, match=rf"archives cannot be written: no space left on tmpfs at {small}$"):
        check_writable(small / "archives")


def test_a_guard_that_cannot_be_written_is_no_damaged_archive(readonly: Path, tmp_path: Path) -> None:
    theirs = torch_archive(tmp_path, FUNCTION)
    with pytest.raises(OSError, match="Read-only file system"):
        guard(theirs, readonly / "out.mar")


def test_a_copy_that_finds_no_room_names_what_is_written(small: Path, tmp_path: Path) -> None:
    (tmp_path / "a.mar").write_bytes(bytes(2 << 20))
    with pytest.raises(OSError, match="No space left") as full:
        shutil.copyfile(tmp_path / "a.mar", small / "b.mar")
    assert explain(full.value, []).message == f"{small / 'b.mar'} cannot be written: no space left on tmpfs at {small}"


def test_what_finds_no_room_is_not_there_in_half(small: Path) -> None:
    (small / "bench.csv").write_text("earlier")
    with suppress(OSError):
        (small / "full").write_bytes(bytes(2 << 20))
    with pytest.raises(SlotwiseError, match="mine cannot be written, and was removed"):
        new(str(small / "mine"), "onnx", "tabular")
    with pytest.raises(OSError, match="No space left"):
        write_csv(small / "bench.csv", [{"clients": 1}])
    with pytest.raises(OSError, match="No space left"):
        write_junit(small / "out.xml", [], {}, [])
    assert sorted(file.name for file in small.iterdir()) == ["bench.csv", "full"]
    assert (small / "bench.csv").read_text() == "earlier"


@pytest.mark.parametrize("where", ["--out", "the current folder"])
def test_a_build_that_finds_no_room(where: str, small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "own"
    folder.mkdir(parents=True)
    (folder / "handler.py").write_text("")
    (folder / "weights.bin").write_bytes(bytes(3 << 20))
    (folder / "model.toml").write_text('name = "own"\nhandler = "handler.py"\nfiles = ["weights.bin"]\n')
    command = [sys.executable, "-m", "slotwise.cli", "build", str(folder)]
    command += ["--out", str(small / "archives")] if where == "--out" else []
    cwd = tmp_path if where == "--out" else small
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    store = small / ("archives" if where == "--out" else "model_store")
    assert errors == [f"error: {store} wants 2 MiB, and tmpfs at {small} has 1 MiB left"] or errors == [
        f"error: {store} wants 2 MiB, and tmpfs at {small} has 0 MiB left"
    ]


def test_files_are_written_together_or_not_at_all(small: Path) -> None:
    first, second = small / "first", small / "new" / "second"
    first.write_text("as it was")
    with pytest.raises(OSError, match="No space left"):
        write_together({first: "changed", second: "x" * (2 << 20)})
    assert first.read_text() == "as it was"
    assert [file for file in small.rglob("*") if file.is_file()] == [first]
    write_together({first: "changed", second: "too"})
    assert (first.read_text(), second.read_text()) == ("changed", "too")


def test_a_link_stays_one_and_a_file_keeps_its_mode(tmp_path: Path) -> None:
    file, link = tmp_path / "model.toml", tmp_path / "link.toml"
    file.write_text("before")
    file.chmod(0o640)
    link.symlink_to(file)
    write_together({link: "after"})
    assert (link.is_symlink(), file.read_text(), file.stat().st_mode & 0o777) == (True, "after", 0o640)
