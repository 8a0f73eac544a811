"""What a tuning leaves behind: the page, the profile, and no archive that a server would refuse."""

from __future__ import annotations

import itertools
import json
import shutil
import tomllib
import zipfile
from pathlib import Path

import pytest

from slotwise.archive.inspection import inspect
from slotwise.bench.bodies import from_mix
from slotwise.bench.load import LoadResult
from slotwise.bench.offline import BatchTiming, LinearTime
from slotwise.errors import SlotwiseError
from slotwise.profiles import render
from slotwise.tune import page
from slotwise.tune.finals import play
from slotwise.tune.goal import Goal
from slotwise.tune.profile_edit import write_setting
from slotwise.tune.search import Search
from slotwise.tune.simulate import ServiceTimes, simulate
from slotwise.tune.space import SearchSpace, TrialSetting
from slotwise.tune.tuning import TuneRequest, TuneResult
from slotwise.tune.variant import write_variant
from tests.support.sleeper import sleeper
from tests.tune.simulated import DEFAULT, PROFILE, Simulated

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
    front = page.front([(t.setting, t.measured) for t in told.trials if t.state == "measured" and t.measured])
    assert text.count("<tr") == 3 + len(told.trials) + len(told.decision.finalists) + len(front)  # type: ignore[union-attr]
    assert all(a[1].req_s < b[1].req_s and a[1].p99_ms < b[1].p99_ms for a, b in itertools.pairwise(front))
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


def test_apply_writes_into_the_models_own_file_keeps_its_comments_and_renders(here: Path) -> None:
    before = (here / "profiles" / "cpu.toml").read_text("utf-8")
    changed = write_setting(TrialSetting(64, 0, 2, 1, "onnxruntime", "fp32"), "wishful", "cpu", cores=2)
    text = (here / "models" / "wishful" / "model.toml").read_text("utf-8")
    wanted = {"batch_size": 64, "max_batch_delay_ms": 0, "initial_workers": 2, "engine": "onnxruntime", "precision": "fp32"}
    assert tomllib.loads(text)["profiles"]["cpu"] == wanted
    assert "# small" in text
    assert "model.toml: batch_size = 64 (was 4)" in changed
    assert (here / "profiles" / "cpu.toml").read_text("utf-8") == before, "the profile is for all models"
    rendered = (here / "profiles" / "cpu.properties").read_text("utf-8").replace(" ", "")
    assert '"batchSize":64' in rendered
    assert '"batchSize":16' in rendered, "the other models keep theirs"
    assert (here / "config.properties").is_file()
    assert write_setting(TrialSetting(64, 0, 2, 1, "onnxruntime", "fp32"), "wishful", "cpu", cores=2) == []


def test_apply_moves_the_autoscalers_target_of_the_pods_that_serve_the_model(here: Path) -> None:
    shutil.copytree(ROOT / "k8s", here / "k8s")
    shutil.copytree(ROOT / "models" / "digits", here / "models" / "digits")
    changed = write_setting(TrialSetting(8, 1, 3, 1), "digits", "cpu", cores=3)
    assert "k8s/base/hpa.yaml: rendered" in changed
    assert 'averageValue: "24"' in (here / "k8s" / "base" / "hpa.yaml").read_text("utf-8")
    assert (here / "k8s" / "overlays" / "ei" / "kustomization.yaml").read_text("utf-8").count('"64"') == 1
    render.check(here)


@pytest.mark.parametrize("linked", [False, True])
def test_apply_that_cannot_render_leaves_the_models_file_as_it_was(
    here: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    model = here / "models" / "wishful" / "model.toml"
    if linked:
        model.rename(here / "theirs.toml")
        model.symlink_to(here / "theirs.toml")
    before = model.read_text("utf-8")
    monkeypatch.setattr(render, "write", lambda root: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_setting(TrialSetting(64, 0, 2, 1), "wishful", "cpu", cores=2)
    assert (model.read_text("utf-8"), model.is_symlink()) == (before, linked)
    assert [file.name for file in model.parent.iterdir()] == ["model.toml"]


def test_apply_is_refused_for_a_model_without_a_folder_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for model in ("mnist", "nobody"):
        with pytest.raises(SlotwiseError, match="has no folder in this project"):
            write_setting(TrialSetting(2, 1, 1, 1), model, "cpu", cores=1)
    assert list(tmp_path.iterdir()) == []


def test_a_mix_has_its_bodies_as_often_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"a")
    (tmp_path / "b.bin").write_bytes(b"b")
    mix = tmp_path / "mix.toml"
    mix.write_text('[[body]]\nfile = "a.png"\nweight = 3\n[[body]]\nfile = "b.bin"\ncontent_type = "text/plain"\n')
    bodies = from_mix(mix)
    assert sorted((body.data, body.content_type) for body in bodies) == [(b"a", "image/png")] * 3 + [(b"b", "text/plain")]
    for wrong in ("weight = 1", 'file = "a.png"\nweight = 0', 'file = "a.png"\nwieght = 1', 'file = "a.png"\nweight = true'):
        mix.write_text(f"[[body]]\n{wrong}\n")
        with pytest.raises(SlotwiseError, match="body"):
            from_mix(mix)


def test_a_variant_is_a_sound_archive_with_other_settings(tmp_path: Path) -> None:
    original = sleeper(tmp_path)
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
