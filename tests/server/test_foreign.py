"""Archives of other tools, whose handlers may answer once a batch: batches of one request, unless somebody says more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slotwise.archive.guarding.guarded import guard
from slotwise.archive.inspection import inspect
from slotwise.deploy.deploy import foreign_note, registration, requirements_note
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
