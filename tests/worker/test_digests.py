"""The worker refuses to start on an extraction that is not what was built, and looks once an extraction."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from slotwise.worker.digests import MARKER, DigestError, verify


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


def test_what_was_built_passes_and_is_verified_once(model_dir: Path) -> None:
    verify(model_dir)
    assert (model_dir / MARKER).is_file()
    (model_dir / "net.bin").write_bytes(b"changed later")
    verify(model_dir)  # once an extraction: the second worker does not read the weights again


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


def test_a_marker_of_another_extraction_counts_for_nothing(model_dir: Path) -> None:
    (model_dir / MARKER).write_text("0" * 64)
    (model_dir / "net.bin").write_bytes(b"weightz")
    with pytest.raises(DigestError):
        verify(model_dir)


def test_removing_the_digests_does_not_help(model_dir: Path) -> None:
    (model_dir / "MAR-INF" / "DIGESTS.json").unlink()
    verify(model_dir)  # a handler under development
    (model_dir / "slotwise.json").write_text("{}")
    with pytest.raises(DigestError, match="lacks"):
        verify(model_dir)


def test_what_a_library_leaves_behind_and_a_read_only_folder_do_no_harm(model_dir: Path) -> None:
    (model_dir / "__pycache__").mkdir()
    (model_dir / "__pycache__" / "handler.cpython-311.pyc").write_bytes(b"")
    (model_dir / "kernels.cache").write_bytes(b"")
    (model_dir / MARKER).mkdir()  # cannot be written
    verify(model_dir)
