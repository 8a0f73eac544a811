"""`slotwise renew`: today's worker in an archive of an earlier release, all else to the byte, tried before it is taken."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slotwise import __version__
from slotwise.archive import load, renewal
from slotwise.archive.guarding.guarded import guard
from slotwise.archive.inspection import inspect
from slotwise.archive.packaging import WORKER, in_archive, in_text, write_zip
from slotwise.archive.renewal import Renewal, outdated, outdated_in, renew
from slotwise.cli import build_app
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.worker.environment.digests import file_sha256
from slotwise.worker.separability.about import About
from slotwise.worker.separability.verdict import Verdict
from tests.archive.foreign_archives import FUNCTION, torch_archive
from tests.support.archives import contents

FIXTURES = Path(__file__).parents[1] / "fixtures"
RUN = CliRunner()


def digests(path: Path) -> dict[str, str]:
    """Every file of an archive and its SHA-256, once all of them are what was built."""
    return {entry.name: entry.sha256 for entry in inspect(path).entries}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """An archive of 0.2.0 whose handler uses most of what a handler may."""
    return Path(shutil.copy(FIXTURES / "sums-0.2.0.mar", tmp_path / "sums.mar"))


def changed(path: Path, **texts: str) -> Path:
    """The same archive with other texts in files of these names (a file's dot is two underscores), and the right digests."""
    new = path.with_suffix(".new")
    with zipfile.ZipFile(path) as source:
        write_zip(in_archive(source) | {name.replace("__", "."): in_text(text) for name, text in texts.items()}, new)
    return new.replace(path)


@pytest.mark.parametrize(("release", "name"), [("0.1.0", "digits"), ("0.2.0", "sums")])
def test_the_worker_is_todays_and_all_else_stays_to_the_byte(tmp_path: Path, release: str, name: str) -> None:
    path = Path(shutil.copy(FIXTURES / f"{name}-{release}.mar", tmp_path / f"{name}.mar"))
    before = digests(path)
    assert outdated(inspect(path)).endswith(f"worker of slotwise {release}: `slotwise renew {path}` puts today's in")
    done = renew(path)
    after = digests(path)
    assert (done.before, done.after, done.compared, done.changed) == (release, __version__, release != "0.1.0", [])
    assert done.examples == len([file for file in before if file.startswith("examples/")])
    ours = ("slotwise/", "slotwise.json", "MAR-INF/DIGESTS.json")
    assert {file: digest for file, digest in before.items() if not file.startswith(ours)}.items() <= after.items()
    worker = {f"slotwise/{file.relative_to(project.PACKAGE)}": file for file in (project.PACKAGE / "worker").rglob("*.py")}
    assert {file: after[file] for file in worker} == {file: file_sha256(path) for file, path in worker.items()}
    described = {"worker": WORKER, "slotwise": __version__}
    old_settings = json.loads(contents(FIXTURES / f"{name}-{release}.mar")["slotwise.json"])
    assert json.loads(contents(path)["slotwise.json"]) == {**old_settings, **described}
    assert outdated(inspect(path)) == ""


def test_what_was_built_while_it_was_tried_stays(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = old.with_name("sums.report.json")
    report.write_text("{}")

    def tried_and_built(*given: Any) -> Renewal:
        built = tmp_path / "built.mar"
        built.write_bytes(b"what a build has made meanwhile")
        built.replace(old)
        return Renewal(old, "0.2.0", __version__, True)

    monkeypatch.setattr(renewal, "_tried", tried_and_built)
    with pytest.raises(SlotwiseError, match=r"sums\.mar was written anew while it was tried"):
        renew(old)
    assert old.read_bytes() == b"what a build has made meanwhile"
    assert report.read_text() == "{}"


def test_what_is_renewed_already_is_left_alone(old: Path) -> None:
    renew(old)
    stamp = old.stat()
    assert not renew(old).tried
    assert (old.stat().st_ino, old.stat().st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)


def test_what_the_old_worker_has_proven_is_not_kept(old: Path) -> None:
    with zipfile.ZipFile(old) as source:
        settings = json.loads(source.read("slotwise.json"))
    wrong = Verdict(True, "", 0, (2, 3, 4), about=About("numpy fp32 cpu", "numpy 1", "any")).to_json()
    ends = Verdict(None, "when it is tried, it ends the worker (3)").to_json()
    renew(changed(old, slotwise__json=json.dumps({**settings, "separability": [wrong, ends]})))
    with zipfile.ZipFile(old) as source:
        (left,) = json.loads(source.read("slotwise.json"))["separability"]
    assert "ends the worker" in left["cause"]


def test_with_out_the_old_one_stays_and_the_report_of_the_build_follows_without(old: Path, tmp_path: Path) -> None:
    report = old.with_name("sums.report.json")
    report.write_text(json.dumps({"sha256": file_sha256(old), "size_bytes": old.stat().st_size, "measured": {"ms": 1}}))
    old.chmod(0o640)
    data = old.read_bytes()
    renew(old, tmp_path / "new.mar")
    assert old.read_bytes() == data
    assert json.loads(report.read_text())["sha256"] == file_sha256(old)
    renew(old)
    assert old.read_bytes() == (tmp_path / "new.mar").read_bytes()
    assert old.stat().st_mode & 0o777 == 0o640
    about = json.loads(report.read_text())
    assert (about["sha256"], about["size_bytes"]) == (file_sha256(old), old.stat().st_size)
    assert about["measured"] == {"ms": 1}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["new.mar", "sums.mar", "sums.report.json"]


HANDLER = """
import json
import slotwise
from slotwise.worker import BatchHandler

class Handler(BatchHandler):
    def load(self, model_dir, settings):
        {load}
        return lambda rows: rows

    def example(self):
        return 1.0

    def decode(self, body, headers):
        return [1.0]

    def encode(self, output, item):
        return {{"release": slotwise.__version__}}

handle = Handler.entry_point()
"""


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ("assert slotwise.__version__ == '0.2.0', 'only the old one'", "does not run with today's worker.*only the old one"),
        ("", r"answers otherwise with today's worker: one\.json, two\.json"),
    ],
)
def test_where_it_does_not_run_or_answers_otherwise_the_old_one_stays(old: Path, load: str, message: str) -> None:
    changed(old, sums__py=HANDLER.format(load=load or "pass"))
    data = old.read_bytes()
    with pytest.raises(SlotwiseError, match=message):
        renew(old)
    assert old.read_bytes() == data
    assert list(old.parent.iterdir()) == [old]
    if not load:
        assert renew(old, force=True).changed == ["one.json", "two.json"]


def test_where_the_old_worker_does_not_answer_nothing_is_taken_for_compared(old: Path) -> None:
    changed(old, sums__py=HANDLER.format(load="assert slotwise.__version__ != '0.2.0', 'only the new one'"))
    data = old.read_bytes()
    with pytest.raises(SlotwiseError, match=r"the old worker does not answer: .*only the new one"):
        renew(old)
    assert old.read_bytes() == data
    assert not renew(old, force=True).compared


def test_an_example_that_is_refused_is_no_trial_passed(old: Path) -> None:
    changed(old, **{"examples/one__json": "no numbers"})
    with pytest.raises(SlotwiseError, match=r"with today's worker one\.json is answered with .*not JSON"):
        renew(old)


def test_a_guard_is_renewed_and_theirs_stays(tmp_path: Path) -> None:
    path = guard(torch_archive(tmp_path, FUNCTION))
    terms: dict[str, Any] = json.loads(contents(path)["_slotwise_guard/guard.json"])
    fresh = digests(path)
    assert terms.pop("worker") == WORKER
    changed(path, **{"_slotwise_guard/guard__json": json.dumps({**terms, "slotwise": "0.2.0"}), "_slotwise_guard/gone__py": ""})
    assert outdated(inspect(path)).startswith("theirs-guarded.mar carries the guard of slotwise 0.2.0: ")
    done = renew(path)
    assert (done.before, done.examples) == ("0.2.0", 0)
    assert digests(path) == fresh
    with load(path) as model:
        assert model.answer([b"21"])[0].json() == {"doubled": 42}


def test_what_carries_no_worker_of_ours_or_a_newer_one_is_refused(old: Path, tmp_path: Path) -> None:
    with pytest.raises(SlotwiseError, match="carries no worker of ours"):
        renew(torch_archive(tmp_path, FUNCTION))
    changed(old, slotwise__json=json.dumps({"slotwise": "9.0.0", "worker": 2}))
    with pytest.raises(SlotwiseError, match=r"carries the worker of slotwise 9\.0\.0"):
        renew(old)
    assert outdated(inspect(old)) == ""


def test_what_was_renewed_before_another_fails_is_said(old: Path, tmp_path: Path) -> None:
    done = RUN.invoke(build_app(), ["renew", str(old), str(tmp_path / "none.mar"), "--json"])
    assert done.exit_code == 1
    [said] = json.loads(done.stdout)
    assert (said["archive"], said["after"]) == (str(old), __version__)


def test_the_commands_say_whose_worker_it_is(old: Path, tmp_path: Path) -> None:
    (line,) = outdated_in(tmp_path)
    assert line.startswith("sums.mar carries the worker of slotwise 0.2.0")
    assert line in RUN.invoke(build_app(), ["inspect", str(old)]).output
    done = RUN.invoke(build_app(), ["renew", str(old), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["examples"]) == (0, 2), done.output
    assert f"worker of slotwise {__version__}" in RUN.invoke(build_app(), ["inspect", str(old)]).output
    assert outdated_in(tmp_path) == []
    assert "nothing to do" in RUN.invoke(build_app(), ["renew", str(old)]).output
    assert RUN.invoke(build_app(), ["renew", str(old), str(old), "--out", "x.mar"]).exit_code == 2
