"""Archives of other tools, whose handlers may answer once a batch: batches of one request, unless somebody says more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.guarding.guarded import guard
from slotwise.archive.inspection import inspect
from slotwise.deploy.deploy import foreign_note, registration, requirements_note
from slotwise.deploy.drift import DesiredState
from slotwise.deploy.kept_settings import keep_settings, kept_settings, settings_file
from slotwise.errors import SlotwiseError
from slotwise.profiles.profile import load_profile
from tests.server.bursts import burst
from tests.server.conftest import Live, needs_a_servers_context
from tests.support.foreign import foreign

PROFILE = load_profile("cpu", environ={}, cores=0)


def test_its_batches_have_one_request_unless_somebody_says_more(tmp_path: Path) -> None:
    plain = inspect(foreign(tmp_path, "theirs"), need_digests=False)
    assert registration(plain, PROFILE, {})["batch_size"] == 1
    assert (
        foreign_note(plain, {})
        == "theirs.mar was not built by slotwise: batch size 1, since its handler may answer once a batch"
    )
    named = load_profile("cpu", {"batch_size": "4"}, {}, cores=0)
    assert registration(plain, named, {"batch_size": "4"})["batch_size"] == 4
    assert foreign_note(plain, {"batch_size": "4"}) == ""
    told = inspect(foreign(tmp_path, "told", "batchSize: 3\nmaxBatchDelay: 40\n"), need_digests=False)
    settings = registration(told, PROFILE, {})
    assert (settings["batch_size"], settings["max_batch_delay"]) == (3, 40)
    assert foreign_note(told, {}) == ""


@pytest.mark.server
def test_everybody_is_answered(live: Live, tmp_path: Path) -> None:
    needs_a_servers_context(live)
    home = {**os.environ, "SLOTWISE_HOME": str(live.record.state_dir.parent)}
    name = f"theirs-{live.record.kind}"  # the model store is the session's
    archive = foreign(tmp_path, name)
    command = [sys.executable, "-m", "slotwise.cli", "register", str(archive), "--name", live.record.name, "--json"]
    done = subprocess.run(command, env=home, capture_output=True, text=True, check=False)
    try:
        assert done.returncode == 0, done.stderr
        assert "batch size 1, since its handler may answer once a batch (--batch-size N for another)" in done.stderr
        assert json.loads(done.stdout)["batch_size"] == 1
        answers = burst(live.inference, name, [str(n).encode() for n in range(8)])
        assert [(got.status, got.body) for got in answers] == [(200, {"first": str(n)}) for n in range(8)]
    finally:
        if name in {model.name for model in live.management.list()}:
            live.management.unregister(name)


@pytest.mark.server
def test_what_was_set_for_it_lasts(live: Live, store: Path, tmp_path: Path) -> None:
    needs_a_servers_context(live)
    home = {**os.environ, "SLOTWISE_HOME": str(live.record.state_dir.parent)}
    name = f"lasting-{live.record.kind}"
    archive = foreign(tmp_path, name)

    def command(*words: str) -> Any:
        line = [sys.executable, "-m", "slotwise.cli", *words, "--name", live.record.name, "--json"]
        done = subprocess.run(line, env=home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    try:
        first, said = command("register", str(archive), "--batch-size", "3", "--max-batch-delay", "7")
        assert (first["batch_size"], first["max_batch_delay"]) == (3, 7)
        assert f"kept in {name}.settings.toml, for `serve` and `apply`" in said
        command("scale", name, "--workers", "2")
        info = inspect(store / f"{name}.mar", need_digests=False)
        desired = DesiredState(PROFILE, {}, live.record.kind).registration(info)
        assert [desired[key] for key in ("batch_size", "max_batch_delay", "initial_workers")] == [3, 7, 2]
        live.management.unregister(name)
        again, said = command("register", str(archive))
        assert (again["batch_size"], again["max_batch_delay"], len(again["workers"])) == (3, 7, 2)
        assert "batch size 1" not in said
    finally:
        if name in {model.name for model in live.management.list()}:
            live.management.unregister(name)


def test_what_is_kept_is_weaker_than_the_command_line_and_never_a_model_of_ours(tmp_path: Path) -> None:
    theirs = inspect(foreign(tmp_path, "told", "batchSize: 3\nmaxBatchDelay: 40\n"), need_digests=False)
    path = keep_settings(theirs, {"batch_size": 6})
    assert path == settings_file(theirs.path)
    settings = registration(theirs, PROFILE, {})
    assert (settings["batch_size"], settings["max_batch_delay"]) == (6, 40)
    keep_settings(theirs, {"initial_workers": 2, "max_batch_delay_ms": 0.5})
    assert kept_settings(theirs) == {"batch_size": 6, "initial_workers": 2, "max_batch_delay_ms": 0.5}
    keep_settings(theirs, {"initial_workers": 0})  # for now: no profile has it
    assert kept_settings(theirs)["initial_workers"] == 2
    named = load_profile("cpu", {"batch_size": "4"}, {}, cores=0)
    assert registration(theirs, named, {"batch_size": "4"})["batch_size"] == 4
    assert keep_settings(replace(theirs, model={"name": "ours"}), {"batch_size": 9}) is None
    assert kept_settings(replace(theirs, model={"name": "ours"})) == {}
    for text in ("engine = 1", "batch_size = true", "batch_size = -1", 'batch_size = "8"'):
        settings_file(theirs.path).write_text(text)
        with pytest.raises(SlotwiseError, match="is no setting of an archive"):
            kept_settings(theirs)


def test_a_guarded_one_keeps_what_its_config_says(tmp_path: Path) -> None:
    theirs = foreign(tmp_path, "told", "batchSize: 3\nmaxBatchDelay: 40\n")
    settings = registration(inspect(guard(theirs)), PROFILE, {})
    assert (settings["batch_size"], settings["max_batch_delay"]) == (3, 40)
    chosen = load_profile("cpu", {"batch_size": "5"}, {}, cores=0)
    assert registration(inspect(guard(theirs)), chosen, {"batch_size": "5"})["batch_size"] == 5


def test_a_guarded_one_without_a_config_gets_the_profiles_batches(tmp_path: Path) -> None:
    settings = registration(inspect(guard(foreign(tmp_path, "plain"))), PROFILE, {})
    assert settings["batch_size"] == PROFILE.batch_size


def test_requirements_that_nobody_installs_are_said(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("lightgbm\n")
    theirs = foreign(tmp_path, "wants", requirements=tmp_path / "requirements.txt")
    for info in (inspect(theirs, need_digests=False), inspect(guard(theirs))):
        assert requirements_note(info).startswith(f"{info.path.name}: nobody installs its requirements.txt")
    assert requirements_note(inspect(foreign(tmp_path, "plain"), need_digests=False)) == ""
