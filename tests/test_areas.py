"""What cannot be tried here is named, and fails where a written list needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.untried import areas, lines

ROOT = Path(__file__).resolve().parents[1]


def test_a_needed_area_that_is_missing_fails(tmp_path: Path) -> None:
    environ = {**os.environ, "PATH": str(tmp_path)}  # no program at all
    command = [sys.executable, str(ROOT / "scripts" / "areas.py"), "--need", str(ROOT / ".ci" / "needed-programs")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 1
    assert "error: Chromium is needed: there is no chromium (apt-get install chromium)" in done.stderr
    assert "not tried here: promtool: there is no promtool" in done.stdout


@pytest.mark.parametrize("name", ["needed-programs", "needed-packages"])
def test_what_is_needed_is_known(name: str, tmp_path: Path) -> None:
    assert areas.needed([ROOT / ".ci" / name])
    (tmp_path / "list").write_text("Chromium  # the page\n\nNetscape\n")
    with pytest.raises(KeyError, match="Netscape"):
        areas.needed([tmp_path / "list"])


def test_a_part_of_a_package_that_is_not_there_is_named() -> None:
    assert areas.package("json.decoder", "no_such.part")() == "no_such.part not installed (make test installs it)"


def test_the_end_of_a_run_names_what_was_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(areas, "AREAS", {"Ray": areas.package("no_such_ray", brought_by=areas.FULL), "torch": lambda: ""})
    assert lines(3) == [
        "Ray: no_such_ray not installed (make full installs it)",
        "3 tests were skipped, each with its reason above",
    ]
