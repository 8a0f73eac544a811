"""TorchServe's log files."""

from __future__ import annotations

import errno
import io
import re
import sys
import threading
from pathlib import Path

import pytest

from slotwise.drop_in.line_files import LineFile, LogFiles


def test_a_file_that_is_full_is_put_aside_and_five_are_kept(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "a.log", full_bytes=20)
    for i in range(9):
        file.write(f"line number {i} of many")
        file.flush()
    assert sorted(one.name for one in tmp_path.iterdir()) == [f"a.log.{i}" for i in range(1, 6)]
    assert (tmp_path / "a.log.1").read_text() == "line number 8 of many\n"
    file.write("again")
    file.flush()
    assert (tmp_path / "a.log").read_text() == "again\n"


def test_no_line_of_any_thread_is_lost(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "a.log")
    writers = [threading.Thread(target=lambda k=k: [file.write(f"{k} {i}") for i in range(5000)]) for k in range(4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        file.flush()
    file.flush()
    assert len(set((tmp_path / "a.log").read_text().splitlines())) == 20_000


def test_lines_are_as_log4j_writes_them(tmp_path: Path) -> None:
    out = io.StringIO()
    files = LogFiles(tmp_path / "logs", tmp_path / "metrics", out)
    files.access('/127.0.0.1:1 "GET / HTTP/1.1" 200 3')
    files.model("W-9000-echo_1.0", ["printed"])
    files.server("WARN", "somebody", "said")
    files.flush()
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}"
    assert re.fullmatch(
        rf'{stamp} - /127\.0\.0\.1:1 "GET / HTTP/1\.1" 200 3\n', (tmp_path / "logs" / "access_log.log").read_text()
    )
    assert re.fullmatch(
        rf"{stamp} \[INFO \] W-9000-echo_1\.0-stdout MODEL_LOG - printed\n", (tmp_path / "logs" / "model_log.log").read_text()
    )
    assert re.fullmatch(rf"{stamp} \[WARN \] main somebody - said\n", (tmp_path / "logs" / "ts_log.log").read_text())
    assert out.getvalue().count("\n") == 3


def test_who_flushes_waits_for_lines_that_another_thread_has_taken(tmp_path: Path) -> None:
    """Else the last lines of a server that ends at once are lost."""
    taken, goes_on = threading.Event(), threading.Event()

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            taken.set()
            goes_on.wait(60)
            return super().write(text)

    out, found = Slow(), list[str]()
    files = LogFiles(tmp_path, tmp_path, out)

    def flushed() -> None:
        files.flush()
        found.append(out.getvalue())

    files.server("INFO", "somebody", "the last line")
    assert taken.wait(60)
    second = threading.Thread(target=flushed)
    second.start()
    second.join(0.2)
    goes_on.set()
    second.join()
    assert ["the last line" in text for text in found] == [True]


def test_nobody_who_reads_the_output_stops_nothing(tmp_path: Path) -> None:
    out = io.StringIO()
    files = LogFiles(tmp_path, tmp_path, out)
    out.close()
    files.print("nobody reads this")
    assert (tmp_path / "ts_log.log").exists()


def test_a_full_disk_does_not_end_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    (tmp_path / "a.log").symlink_to("/dev/full")
    file = LineFile(tmp_path / "a.log")
    file.write("lost")
    file.flush()
    (tmp_path / "a.log").unlink()
    file.write("there is room again")
    file.flush()
    assert (tmp_path / "a.log").read_text() == "there is room again\n"
