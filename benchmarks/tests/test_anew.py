"""Figures that are measured anew, each by its command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks import figures
from benchmarks.comparison.parts import PARTS
from benchmarks.measuring import keep
from benchmarks.measuring.anew import PLAN, _ended, anew
from benchmarks.measuring.run import measured
from benchmarks.pages.stale import CODE
from slotwise.errors import SlotwiseError

OF_SLOTWISE = ("bench", "roofline", "tune")
GOOD = "import json, sys\nprint('measuring')\njson.dump({'new': sys.argv[1]}, open(sys.argv[-1], 'w'))"
BAD = "open('docs/figures/bad.json', 'w').write('half of it')\nraise SystemExit(1)"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with two figures, and what measures them: `bad` leaves half a figure."""
    kept = tmp_path / "docs" / "figures"
    kept.mkdir(parents=True)
    for name in ("good", "bad"):
        (kept / f"{name}.json").write_text('{"old": true}')
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    return tmp_path


def test_a_figure_is_measured_or_stays_as_it_was(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measuring.anew.older", lambda root: {"good": "changed", "bad": "changed"})
    plan = {"bad": (1, "bad"), "good": (1, "good quickly"), "fresh": (1, "fresh")}
    assert anew(root, (), "", plan) == 1
    kept = {file.stem: json.loads(file.read_text()) for file in (root / "docs" / "figures").iterdir()}
    assert kept == {"good": {"new": "quickly"}, "bad": {"old": True}}
    assert (root / ".slotwise" / "anew" / "good.log").read_text().strip() == "measuring"


def test_none_begins_that_would_end_later(root: Path) -> None:
    assert anew(root, ["good"], "12:00", {"good": (60 * 24, "good")}) == 0
    assert json.loads((root / "docs" / "figures" / "good.json").read_text()) == {"old": True}


@pytest.mark.parametrize(("names", "until"), [(["bad"], "noon"), (["unknown"], "")])
def test_what_cannot_be_meant_is_refused(root: Path, names: list[str], until: str) -> None:
    with pytest.raises(SlotwiseError):
        anew(root, names, until, {"bad": (1, "bad")})


def test_ctrl_c_waits_until_what_runs_has_ended_its_own(tmp_path: Path) -> None:
    program = "import sys, time\ntry:\n    print('runs', flush=True)\n    time.sleep(60)\n"
    program += "except KeyboardInterrupt:\n    time.sleep(0.5)\n    open('ended', 'w').close()"
    job = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True)
    assert job.stdout is not None
    job.stdout.readline()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        _ended(job)
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("name", [*PLAN])
def test_every_command_of_the_plan_is_one(name: str) -> None:
    module, part, *_ = PLAN[name][1].split()
    assert part in {"benchmarks.figures": figures.PARTS, "benchmarks.compare": PARTS, "slotwise": OF_SLOTWISE}[module]
    assert name in CODE


def test_what_a_command_about_a_model_printed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = tmp_path / "cli.py"
    cli.write_text("import json, sys\nprint(json.dumps({'asked': sys.argv[1:]}))\nsys.exit('--bad' in sys.argv)")
    monkeypatch.setattr(keep, "CLI", (sys.executable, str(cli)))
    target = tmp_path / "kept.json"
    assert not measured(lambda work: keep.printed_by("slotwise bench digits --bad", work), target)
    assert not target.exists()
    assert measured(lambda work: keep.printed_by("slotwise bench digits --offline", work), target)
    kept = json.loads(target.read_text())
    assert (kept["asked"], kept["command"]) == (["bench", "digits", "--offline", "--json"], "slotwise bench digits --offline")
    assert {"commit", "machine", "minutes", "tree"} <= kept.keys()
