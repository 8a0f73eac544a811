"""Download an archive into the model store, and keep it only where it has the SHA-256 that was given."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from slotwise.errors import SlotwiseError, first_line, missing_package
from slotwise.files.disk import written_whole
from slotwise.files.tarball import MAX_UNPACKED_BYTES
from slotwise.worker.environment.digests import file_sha256

SHA256 = re.compile(r"[0-9a-f]{64}")
SCHEMES = ("http", "https", "s3")
BLOCK = 1 << 20
PATIENCE_S, SLOWEST_BYTES_A_S = 60.0, 1024  # who sends more slowly than that, after so long, may never end


def is_url(text: str) -> bool:
    """Whether `text` is something to download. Raises SlotwiseError for an address that nobody here knows how to reach."""
    scheme, mark, _ = text.partition("://")
    if mark and scheme.lower() not in SCHEMES:
        known = ", ".join(f"{one}://" for one in SCHEMES)
        raise SlotwiseError(
            f"archives come by {known} or from a file, not by {scheme[:20]}://", "copy the archive to this machine"
        )
    return bool(mark)


def shown(url: str) -> str:
    """An address as it may be printed: without a user, a password and a query, which may be signed."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def fetch(url: str, sha256: str | None, model_store: Path) -> Path:
    """Download the archive at `url` into the model store and return its path. Raises SlotwiseError for another SHA-256."""
    expected = (sha256 or "").lower()
    if not SHA256.fullmatch(expected):
        what = "is no SHA-256 (64 hexadecimal digits)" if sha256 else "comes without a digest"
        raise SlotwiseError(f"{shown(url)} {what}", "give --sha256; whoever built the archive gets it from `slotwise inspect`")
    name = Path(unquote(urlsplit(url).path)).name
    if not name.endswith(".mar") or name.startswith(".") or not name.isprintable():
        raise SlotwiseError(f"{shown(url)} does not name a .mar file", "give the URL of an archive")
    target = model_store / name
    if _is_there(target, expected):
        return target
    with written_whole(target) as partial:
        observed = _received(url, partial, follow_redirects=True)
        if observed != expected:
            raise another_archive(shown(url), observed)
        _is_there(target, expected)  # by now
    return target


def _is_there(target: Path, sha256: str) -> bool:
    """Whether the store has this archive. Raises SlotwiseError where it has another one of its name."""
    if target.exists() and not (target.is_file() and file_sha256(target) == sha256):
        raise SlotwiseError(f"{target} is there already, with another content", "move it away first")
    return target.exists()


def another_archive(what: str, sha256: str) -> SlotwiseError:
    """The error for what has not the digest that was given."""
    return SlotwiseError(f"{what} is not the archive you want: its SHA-256 is {sha256}", "ask whoever built it")


def download(url: str, target: Path) -> str:
    """Download what is at this very URL into a new file; returns its SHA-256. Raises SlotwiseError.

    A redirect is refused: whoever allowed the URL did not allow where it leads.
    """
    with written_whole(target) as partial:
        return _received(url, partial, follow_redirects=False)


def _received(url: str, partial: Path, *, follow_redirects: bool) -> str:
    digest = hashlib.sha256()
    blocks = _of_s3(url) if url.lower().startswith("s3://") else _of_http(url, follow_redirects)
    began = time.monotonic()
    with partial.open("wb") as file:
        for block in blocks:
            took_s = time.monotonic() - began
            if took_s > PATIENCE_S and file.tell() < SLOWEST_BYTES_A_S * took_s:
                raise _failed(url, f"it sends fewer than {SLOWEST_BYTES_A_S} bytes a second")
            if file.tell() + len(block) > MAX_UNPACKED_BYTES:
                raise SlotwiseError(f"{shown(url)} is larger than {MAX_UNPACKED_BYTES >> 30} GiB", "check the address")
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _of_http(url: str, follow_redirects: bool) -> Iterator[bytes]:
    import httpx  # noqa: PLC0415  slow to import

    try:
        with httpx.stream("GET", url, follow_redirects=follow_redirects, timeout=60) as response:
            if not response.is_success:  # a redirect that is not followed, too
                raise _failed(url, f"it answers {response.status_code} {response.reason_phrase}".rstrip())
            yield from response.iter_bytes()
    except httpx.InvalidURL as error:
        raise _failed(url, "it is no address") from error
    except httpx.HTTPError as error:
        raise _failed(url, str(error) or type(error).__name__) from error


def _of_s3(url: str) -> Iterator[bytes]:
    """An object of S3, or of what speaks as it does. Who asks, where, and with which keys, says AWS's own configuration."""
    try:
        import boto3  # noqa: PLC0415  optional
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
    except ImportError as error:
        raise missing_package("boto3", "an archive on S3") from error
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    if [name for name, _ in query] not in ([], ["versionId"]) or parts.fragment:
        raise _failed(url, "behind an object's key only ?versionId= is known; ? and # of the key itself are %3F and %23")
    try:
        client = boto3.session.Session().client(
            "s3", config=Config(connect_timeout=10, read_timeout=60, retries={"total_max_attempts": 3})
        )
        version = {"VersionId": query[0][1]} if query else {}
        stored = client.get_object(Bucket=parts.netloc, Key=unquote(parts.path.lstrip("/")), **version)
        yield from stored["Body"].iter_chunks(BLOCK)
    except ClientError as error:
        answer = error.response.get("Error", {})
        raise _failed(url, f"S3 answers {answer.get('Code', '')} {answer.get('Message', '')}".rstrip()) from error
    except (BotoCoreError, ValueError) as error:
        raise _failed(url, first_line(error)) from error


def _failed(url: str, why: str) -> SlotwiseError:
    return SlotwiseError(f"{shown(url)} cannot be downloaded: {why}", "check the address")
