"""The worker refuses to start on an extraction that is not what was built, and looks once an extraction."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import marshal
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slotwise.worker.environment import digests
from slotwise.worker.environment.digests import MARKER, DigestError, take_over, verify


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """An extracted archive of two files."""
    files = {"handler.py": b"handle = print\n", "net.bin": b"weights"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    (tmp_path / "MAR-INF").mkdir()
    (tmp_path / "MAR-INF" / "DIGESTS.json").write_text(json.dumps({"algorithm": "sha256", "files": digests}))
    return tmp_path


def test_what_was_built_passes_and_is_read_once(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify(model_dir)
    assert (model_dir / MARKER).is_file()
    monkeypatch.setattr(digests, "file_sha256", lambda file: pytest.fail(f"{file} is read again"))
    verify(model_dir)  # the second worker does not read the weights again
    monkeypatch.undo()
    (model_dir / "net.bin").write_bytes(b"weightz")  # behind the first worker's back
    with pytest.raises(DigestError, match=r"net\.bin"):
        verify(model_dir)


@pytest.mark.parametrize("rewritten", ["net.bin", "handler.py"])
def test_what_a_strangers_handler_rewrites_as_it_starts_the_next_worker_takes_but_for_code(
    model_dir: Path, rewritten: str
) -> None:
    verified = verify(model_dir, others=True)
    (model_dir / rewritten).write_bytes(b"# other")
    take_over(model_dir, verified, others=True)
    if rewritten == "net.bin":
        verify(model_dir, others=True)
        (model_dir / rewritten).unlink()  # as who unpacks it does
        take_over(model_dir, verified, others=True)
        verify(model_dir, others=True)
        (model_dir / rewritten).write_bytes(b"of another")
    with pytest.raises(DigestError, match=f"{rewritten} is not the file that was built: .* write elsewhere"):
        verify(model_dir, others=True)


@pytest.mark.parametrize("damage", ["changed", "missing", "unlisted code"])
def test_a_mismatch_keeps_the_worker_from_starting(model_dir: Path, damage: str) -> None:
    if damage == "changed":
        (model_dir / "net.bin").write_bytes(b"weightz")
    elif damage == "missing":
        (model_dir / "net.bin").unlink()
    else:
        (model_dir / "numpy.py").write_text("")
    for _ in range(2):
        with pytest.raises(DigestError, match=r"net\.bin|numpy\.py"):
            verify(model_dir)
    assert not (model_dir / MARKER).exists()


@pytest.mark.parametrize("shipped", ["0" * 64, "of an earlier release", "copied"])
def test_a_marker_that_came_with_the_archive_counts_for_nothing(model_dir: Path, tmp_path: Path, shipped: str) -> None:
    if shipped == "copied":  # somebody extracts it, lets it be verified, and packs what is there
        verify(model_dir)
        model_dir = Path(shutil.copytree(model_dir, tmp_path / "extracted elsewhere"))
    elif shipped == "of an earlier release":  # which any archive could carry
        listing = (model_dir / "MAR-INF" / "DIGESTS.json").read_bytes()
        (model_dir / MARKER).write_text(hashlib.sha256(listing).hexdigest())
    else:
        (model_dir / MARKER).write_text(shipped)
    (model_dir / "net.bin").write_bytes(b"weightz")
    with pytest.raises(DigestError):
        verify(model_dir)


def test_removing_the_digests_does_not_help(model_dir: Path) -> None:
    (model_dir / "MAR-INF" / "DIGESTS.json").unlink()
    verify(model_dir)  # a handler under development
    (model_dir / "slotwise.json").write_text("{}")
    with pytest.raises(DigestError, match="lacks"):
        verify(model_dir)


def bytecode(model_dir: Path, text: str, mode: py_compile.PycInvalidationMode) -> Path:
    """Bytecode of other text that Python runs in place of handler.py."""
    source = model_dir / "handler.py"
    right, about = source.read_text(), source.stat()
    if mode is not py_compile.PycInvalidationMode.CHECKED_HASH:
        source.write_text(text.ljust(len(right), "\n"))
        os.utime(source, ns=(about.st_atime_ns, about.st_mtime_ns))
        made = Path(py_compile.compile(str(source), invalidation_mode=mode, doraise=True))
        source.write_text(right)
        os.utime(source, ns=(about.st_atime_ns, about.st_mtime_ns))
        return made
    made = Path(importlib.util.cache_from_source(str(source)))
    made.parent.mkdir()
    head = importlib.util.MAGIC_NUMBER + (3).to_bytes(4, "little") + importlib.util.source_hash(right.encode())
    made.write_bytes(head + marshal.dumps(compile(text, str(source), "exec")))
    return made


def says(model_dir: Path) -> str:
    """What the module `handler` of this folder is, to Python."""
    command = [sys.executable, "-c", "import handler; print(handler.handle)"]
    return subprocess.run(command, cwd=model_dir, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("mode", py_compile.PycInvalidationMode, ids=lambda mode: mode.name)
def test_bytecode_in_place_of_a_module_keeps_the_worker_from_starting(
    model_dir: Path, mode: py_compile.PycInvalidationMode
) -> None:
    made = bytecode(model_dir, "handle = 1", mode)
    assert says(model_dir) == "1", "Python runs it, and not handler.py"
    with pytest.raises(DigestError, match=r"handler\..*pyc would run in place of handler\.py"):
        verify(model_dir)
    made.write_bytes(made.read_bytes()[:20])
    with pytest.raises(DigestError, match="would run in place"):
        verify(model_dir)


def test_what_python_writes_at_an_import_is_no_news(model_dir: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", "import handler"], cwd=model_dir, env=environ, check=True)
    assert list(model_dir.glob("__pycache__/handler.*.pyc"))
    verify(model_dir)
    (model_dir / "__pycache__" / "later.pyc").write_bytes(b"")
    verify(model_dir)


def test_bytecode_that_python_does_not_run_does_no_harm(model_dir: Path) -> None:
    stale = bytecode(model_dir, "handle = 1", py_compile.PycInvalidationMode.TIMESTAMP)
    os.utime(model_dir / "handler.py", (1, 1))
    stale.with_name("handler.cpython-39.pyc").write_bytes(b"of another Python")
    stale.with_name("gone.cpython-311.pyc").write_bytes(b"of a module that is no more")
    verify(model_dir)
    stale.write_bytes(b"short")
    verify(model_dir)


def test_bytecode_that_is_listed_may_be_written_anew_by_python(model_dir: Path) -> None:
    """As torch-model-archiver packs a folder that somebody has imported from; a guard keeps it."""
    listing = model_dir / "MAR-INF" / "DIGESTS.json"
    made = bytecode(model_dir, "handle = 1", py_compile.PycInvalidationMode.TIMESTAMP)
    listed = json.loads(listing.read_text())
    listed["files"][made.relative_to(model_dir).as_posix()] = hashlib.sha256(made.read_bytes()).hexdigest()
    listing.write_text(json.dumps(listed))
    verify(model_dir)  # what was built
    os.utime(model_dir / "handler.py", (1, 1))
    py_compile.compile(str(model_dir / "handler.py"), doraise=True)
    verify(model_dir)


@pytest.mark.parametrize("name", ["numpy/__init__.py", "numpy.cpython-311-x86_64-linux-gnu.so", "numpy.pyc", "a.pth"])
def test_whatever_python_could_import_has_to_be_listed(model_dir: Path, name: str) -> None:
    (model_dir / name).parent.mkdir(exist_ok=True)
    (model_dir / name).write_bytes(b"")
    with pytest.raises(DigestError, match="do not list"):
        verify(model_dir)


def test_what_a_library_leaves_behind_and_a_read_only_folder_do_no_harm(model_dir: Path) -> None:
    (model_dir / "kernels.cache").write_bytes(b"")
    (model_dir / MARKER).mkdir()  # cannot be written
    verify(model_dir)
    verify(model_dir)
