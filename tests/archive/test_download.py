"""Archives by URL: only with a digest, and only what fits it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from slotwise.archive.download import fetch
from slotwise.errors import SlotwiseError

CONTENT = b"an archive" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The URL of a web server that has one archive."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "model.mar").write_bytes(CONTENT)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.02}).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def test_what_fits_its_digest_is_in_the_store_and_is_not_fetched_twice(site: str, store: Path) -> None:
    path = fetch(f"{site}/model.mar?x=1", DIGEST.upper(), store)
    assert path == store / "model.mar"
    assert path.read_bytes() == CONTENT
    before = path.stat().st_mtime_ns
    assert fetch(f"{site}/model.mar", DIGEST, store).stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("path", "digest", "message"),
    [
        ("model.mar", None, "comes without a digest"),
        ("model.mar", "abc", "is no SHA-256"),
        ("model.mar", "0" * 64, "is not the archive you want"),
        ("other.mar", DIGEST, "cannot be downloaded"),
        ("model.txt", DIGEST, "does not name a .mar file"),
        ("", DIGEST, "does not name a .mar file"),
    ],
)
def test_anything_else_is_refused_and_leaves_nothing(
    site: str, store: Path, path: str, digest: str | None, message: str
) -> None:
    with pytest.raises(SlotwiseError, match=message):
        fetch(f"{site}/{path}", digest, store)
    assert list(store.iterdir()) == []


def test_a_file_of_that_name_is_not_overwritten(site: str, store: Path) -> None:
    (store / "model.mar").write_bytes(b"mine")
    with pytest.raises(SlotwiseError, match="with another content"):
        fetch(f"{site}/model.mar", DIGEST, store)
    assert (store / "model.mar").read_bytes() == b"mine"


def test_what_does_not_end_is_not_written_to_the_end(site: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwise.archive.download.MAX_UNPACKED_BYTES", len(CONTENT) - 1)
    with pytest.raises(SlotwiseError, match="is larger than"):
        fetch(f"{site}/model.mar", DIGEST, store)
    assert list(store.iterdir()) == []
