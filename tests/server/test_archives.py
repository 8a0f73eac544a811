"""Archives on the real servers: their own worker code runs, and what was changed does not start."""

from __future__ import annotations

import http.server
import threading
import zipfile
from functools import partial
from pathlib import Path

import httpx
import pytest

from slotwise.archive.build import build
from slotwise.client.inference import auth_headers
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


def test_no_server_fetches_an_archive_from_elsewhere(live: Live, store: Path) -> None:
    asked: list[str] = []

    class Elsewhere(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Elsewhere, directory=str(store))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/quick.mar"
        answer = httpx.post(
            f"{live.record.management_url}/models",
            params={"url": url},
            headers=auth_headers(live.record, "management"),
            timeout=60,
        )
        server.shutdown()
    assert answer.status_code >= 400
    assert asked == []
