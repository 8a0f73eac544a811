"""Archives on the real servers: their own worker code runs, and what was changed does not start."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from slotwise.archive.build import build
from slotwise.errors import SlotwiseError
from tests.server.conftest import Live, needs_a_servers_context

WHERE = """
import os
import slotwise.worker
def handle(data, context):
    return data and [{"code": slotwise.worker.__file__, "model_dir": os.getcwd()}] * len(data)
"""


def test_the_archives_own_worker_code_wins_over_the_installed_one(live: Live, store: Path, tmp_path: Path) -> None:
    needs_a_servers_context(live)
    (tmp_path / "where.py").write_text(WHERE)
    (tmp_path / "model.toml").write_text('name = "where"\nhandler = "where.py"\n')
    build(tmp_path, store)
    with live.registered("where"):
        said = live.inference.predict("where", b"?").json()
    assert Path(said["code"]).is_relative_to(said["model_dir"]), said
    assert not Path(said["code"]).is_relative_to(Path(__file__).parent)


def test_a_worker_refuses_an_archive_that_was_changed_after_it_was_built(live: Live, store: Path) -> None:
    with zipfile.ZipFile(store / "quick.mar") as source, zipfile.ZipFile(store / "changed.mar", "w") as target:
        for name in source.namelist():
            more = b"\n# one line more\n" if name == "slotwise/worker/batch.py" else b""
            target.writestr(name, source.read(name) + more)
    if live.record.kind == "slotwise":  # it looks before any worker does
        with pytest.raises(SlotwiseError, match=r"cannot register .*batch\.py is not the file that was built"):
            live.management.register("changed.mar", name="changed", initial_workers=1)
        return
    live.management.register("changed.mar", name="changed", initial_workers=1)
    try:
        with pytest.raises(SlotwiseError, match=r"changed does not become ready: .*batch\.py is not the file that was built"):
            live.management.wait_ready("changed")
    finally:
        live.management.unregister("changed")
