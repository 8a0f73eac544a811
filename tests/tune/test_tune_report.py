"""What a tuning leaves behind: the page, the profile, and no archive that a server would refuse."""

from __future__ import annotations

import json
import shutil
import tomllib
import zipfile
from pathlib import Path

import pytest

from slotwise import project
from slotwise.archive.build import inspect
from slotwise.bench.load import LoadResult
from slotwise.bench.offline import BatchTiming, LinearTime
from slotwise.profiles.profile import load_profile
from slotwise.tune import page, study
from slotwise.tune.finals import play
from slotwise.tune.goal import Goal
from slotwise.tune.profile_edit import write_setting
from slotwise.tune.search import Search
from slotwise.tune.simulate import ServiceTimes, simulate
from slotwise.tune.space import SearchSpace, TrialSetting
from slotwise.tune.tuning import TuneRequest, TuneResult
from slotwise.tune.variant import write_variant
from tests.tune.test_tune import DEFAULT, PROFILE, Simulated

pytest.importorskip("matplotlib")
pytest.importorskip("tomlkit")
ROOT = Path(__file__).resolve().parents[2]


def outcome(slo_p99_ms: float) -> TuneResult:
    """A tuning on a simulated server."""
    service, goal = ServiceTimes(LinearTime(1, 4), 2), Goal(slo_p99_ms, 16)
    bench = Simulated(service)
    search = Search(bench, SearchSpace((1, 4, 8), (1, 5), ((1, 1), (2, 1))), goal, max_trials=6)
    found = TuneResult(
        TuneRequest("<model>", goal), DEFAULT, PROFILE, service=service, machine={"processor": "a & b", "versions": {"x": "1"}}
    )
    found.timed = [BatchTiming(n, 5, n + 4.0, 1, n + 2.0, 1) for n in (1, 4, 16)]
    found.trials = search.run([DEFAULT, PROFILE], service)
    found.closest = search.closest()
    best = [trial.setting for trial in search.best(3)]
    if best:
        found.decision = play(bench, [*best, DEFAULT], goal, seconds=1)
        loads: list[LoadResult] = [simulate(service, best[0], clients) for clients in (1, 8)]
        found.by_clients = [(best[0].batch_size, load) for load in loads]
        found.by_delay = [(5, loads[0]), (10, loads[1])]
    return found


def test_the_page_is_one_file_that_says_who_won_and_why(tmp_path: Path) -> None:
    told = outcome(1000)
    text = page.write(told, tmp_path / "report", "slotwise tune '<model>'").read_text("utf-8")
    assert told.winner is not None
    assert str(told.winner) in text
    assert "&lt;model&gt;" in text
    assert "a &amp; b" in text
    assert "<model>" not in text
    assert "<script" not in text
    assert "src=" not in text
    assert text.count("<tr") == 2 + len(told.trials) + len(told.decision.finalists)  # type: ignore[union-attr]
    kept = json.loads((tmp_path / "report" / "tune.json").read_text("utf-8"))
    assert kept["winner"]["batch_size"] == told.winner.batch_size
    assert len(kept["trials"]) == len(told.trials)
    assert kept["command"] == "slotwise tune '<model>'"


def test_a_target_that_was_missed_has_a_page_too(tmp_path: Path) -> None:
    told = outcome(0.001)
    assert told.winner is None
    assert "the closest is" in told.reason
    assert "missed" in page.write(told, tmp_path, "slotwise tune").read_text("utf-8")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with profiles of its own and one model that has a wish."""
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    model = tmp_path / "models" / "wishful"
    model.mkdir(parents=True)
    (model / "model.toml").write_text('name = "wishful"\nhandler = "h.py"\n\n[profiles.cpu]\nbatch_size = 4  # small\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_apply_writes_the_profile_keeps_its_comments_and_renders(here: Path) -> None:
    before = (here / "profiles" / "cpu.toml").read_text("utf-8")
    changed = write_setting(TrialSetting(64, 3, 2, 1), "mnist", "cpu", cores=2)
    profile = load_profile("cpu", environ={}, cores=0)
    assert (profile.batch_size, profile.max_batch_delay_ms, profile.initial_workers, profile.threads) == (64, 3, 2, 0)
    after = (here / "profiles" / "cpu.toml").read_text("utf-8")
    assert [line.partition("#")[2] for line in after.splitlines()] == [line.partition("#")[2] for line in before.splitlines()]
    assert any("batch_size = 64" in line for line in changed)
    assert '"batchSize":64' in (here / "profiles" / "cpu.properties").read_text("utf-8").replace(" ", "")
    assert (here / "config.properties").is_file()


def test_apply_writes_where_the_model_itself_says_otherwise(here: Path) -> None:
    write_setting(TrialSetting(32, 3, 1, 1, "onnxruntime", "fp32"), "wishful", "cpu", cores=4)
    text = (here / "models" / "wishful" / "model.toml").read_text("utf-8")
    assert tomllib.loads(text)["profiles"]["cpu"] == {"batch_size": 32}
    assert "# small" in text
    profile = load_profile("cpu", environ={}, cores=0)
    assert profile.batch_size == 16
    assert (profile.threads, profile.engine, profile.precision) == (1, "onnxruntime", "fp32")


def test_apply_copies_a_profile_that_is_not_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = project.profile_file("cpu").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    write_setting(TrialSetting(2, 1, 1, 1), "mnist", "cpu", cores=1)
    assert tomllib.loads((tmp_path / "profiles" / "cpu.toml").read_text("utf-8"))["registration"]["batch_size"] == 2
    assert (ROOT / "profiles" / "cpu.toml").read_text("utf-8") == given


def test_a_variant_is_a_sound_archive_with_other_settings(tmp_path: Path) -> None:
    original = study.standin(tmp_path)
    one, two = tmp_path / "one.mar", tmp_path / "two.mar"
    for target in (one, two):
        write_variant(original, target, "cpu", {"threads": 2, "engine": "torch"})
        info = inspect(target)
        assert info.model["profiles"]["cpu"] == {"threads": 2, "engine": "torch"}
    assert one.read_bytes() != two.read_bytes()
    assert "profiles" not in inspect(original).model or inspect(original).model["profiles"] == {}
    with zipfile.ZipFile(original) as before, zipfile.ZipFile(one) as after:
        assert sorted(before.namelist()) == sorted(after.namelist())


def test_a_variant_of_a_foreign_archive_is_different_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "foreign.mar", "w") as made:
        made.writestr("MAR-INF/MANIFEST.json", "{}")
    write_variant(tmp_path / "foreign.mar", tmp_path / "variant.mar", "cpu", {"threads": 1})
    with zipfile.ZipFile(tmp_path / "variant.mar") as variant:
        assert json.loads(variant.read("slotwise.json"))["trial"] == "variant.mar"
