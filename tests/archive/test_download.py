"""Archives by URL: only with a digest, and only what fits it."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from slotwise.archive import download
from slotwise.archive.download import fetch, is_url
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
        (".mar", DIGEST, "does not name a .mar file"),
        ("%00.mar", DIGEST, "does not name a .mar file"),
        ("a%0Ab.mar", DIGEST, "does not name a .mar file"),
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


def test_what_drips_is_given_up(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a few such servers keep every place for changes of models for ever: there is always one more byte in time."""
    monkeypatch.setattr(download, "PATIENCE_S", 0.2)

    class Dripping(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                for _ in range(40):
                    self.wfile.write(b"x")
                    time.sleep(0.05)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Dripping) as server:
        threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.02}).start()
        with pytest.raises(SlotwiseError, match="bytes a second"):
            fetch(f"http://127.0.0.1:{server.server_port}/model.mar", DIGEST, store)
        server.shutdown()
    assert list(store.iterdir()) == []


def test_what_does_not_end_is_not_written_to_the_end(site: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwise.archive.download.MAX_UNPACKED_BYTES", len(CONTENT) - 1)
    with pytest.raises(SlotwiseError, match="is larger than"):
        fetch(f"{site}/model.mar", DIGEST, store)
    assert list(store.iterdir()) == []


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a bucket on a stand-in of S3 (moto's server), with one archive; AWS's own variables say where."""
    boto3, server = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    served = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    served.start()
    host, port = served.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "a-secret-of-the-test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3")
    client.create_bucket(Bucket="models")
    client.put_object(Bucket="models", Key="a folder/model.mar", Body=CONTENT)
    yield "models"
    served.stop()


def test_an_archive_comes_from_s3(bucket: str, store: Path) -> None:
    assert fetch(f"s3://{bucket}/a%20folder/model.mar", DIGEST, store).read_bytes() == CONTENT
    for digest, message in (("0" * 64, "is not the archive you want"), (None, "comes without a digest")):
        (store / "model.mar").unlink(missing_ok=True)
        with pytest.raises(SlotwiseError, match=message):
            fetch(f"s3://{bucket}/a folder/model.mar", digest, store)
    assert list(store.iterdir()) == []


def test_a_version_of_an_object_is_that_version(bucket: str, store: Path) -> None:
    client = pytest.importorskip("boto3").client("s3")
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    ids = [client.put_object(Bucket=bucket, Key="m.mar", Body=body)["VersionId"] for body in (CONTENT, b"newer")]
    assert fetch(f"s3://{bucket}/m.mar?versionId={ids[0]}", DIGEST, store).read_bytes() == CONTENT
    (store / "m.mar").unlink()
    for behind in ("?version=1", f"?versionId={ids[0]}&partNumber=1", f"?versionId={ids[0]}&versionId={ids[1]}", "#2"):
        with pytest.raises(SlotwiseError, match=r"only \?versionId= is known"):
            fetch(f"s3://{bucket}/m.mar{behind}", DIGEST, store)


def test_what_s3_refuses_is_one_line_without_a_key(bucket: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address, said in (
        (f"s3://{bucket}/other.mar", "S3 answers NoSuchKey"),
        ("s3://nobody/model.mar", "S3 answers NoSuchBucket"),
    ):
        with pytest.raises(SlotwiseError) as caught:
            fetch(address, DIGEST, store)
        assert said in caught.value.message
        assert "a-secret" not in caught.value.message
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(SlotwiseError, match="Could not connect"):
        fetch(f"s3://{bucket}/model.mar", DIGEST, store)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(store / "none"))
    with pytest.raises(SlotwiseError, match="Unable to locate credentials"):
        fetch(f"s3://{bucket}/model.mar", DIGEST, store)
    assert list(store.iterdir()) == []


@pytest.mark.parametrize(
    "address", ["oci://registry/model.mar", "gs://bucket/model.mar", "ftp://there/model.mar", "file:///tmp/model.mar"]
)
def test_an_address_that_nobody_knows_is_refused_by_its_name(address: str) -> None:
    with pytest.raises(SlotwiseError, match=f"not by {address.partition(':')[0]}://"):
        is_url(address)


def test_what_is_secret_in_an_address_is_not_printed(site: str, store: Path) -> None:
    secret = site.replace("http://", "http://somebody:pass%20word@")
    for path, digest in (
        ("other.mar?X-Signature=abc", DIGEST),
        ("model.mar?X-Signature=abc", "0" * 64),
        ("model.mar?X-Signature=abc", None),
    ):
        with pytest.raises(SlotwiseError) as caught:
            fetch(f"{secret}/{path}", digest, store)
        said = f"{caught.value.message} {caught.value.hint}"
        assert site.removeprefix("http://") in said
        assert not [word for word in ("somebody", "pass", "abc", "Signature") if word in said]


def test_two_downloads_at_once_of_one_name_do_not_mix(store: Path) -> None:
    first, second = b"A" * (3 << 20), b"B" * (2 << 20)
    halfway, over = threading.Event(), threading.Event()

    class Slowly(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = first if self.path == "/first/model.mar" else second
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content[: 2 << 20])
            if content is first:
                halfway.set()
                over.wait(60)
            self.wfile.write(content[2 << 20 :])

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Slowly) as server:
        threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.02}).start()
        site = f"http://127.0.0.1:{server.server_port}"
        with ThreadPoolExecutor(1) as pool:
            fetched = pool.submit(fetch, f"{site}/first/model.mar", hashlib.sha256(first).hexdigest(), store)
            assert halfway.wait(60)
            assert fetch(f"{site}/second/model.mar", hashlib.sha256(second).hexdigest(), store).read_bytes() == second
            over.set()
            with pytest.raises(SlotwiseError, match="with another content"):
                fetched.result(60)
        server.shutdown()
    assert [(file.name, file.read_bytes() == second) for file in store.iterdir()] == [("model.mar", True)]
