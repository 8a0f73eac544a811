"""Download an archive into the model store, and keep it only where it has the SHA-256 that was given."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from slotwise.archive.inspection import file_sha256
from slotwise.errors import SlotwiseError
from slotwise.files.tarball import MAX_UNPACKED_BYTES

SHA256 = re.compile(r"[0-9a-f]{64}")


def is_url(text: str) -> bool:
    """Whether `text` is something to download."""
    return text.lower().startswith(("http://", "https://"))


def fetch(url: str, sha256: str | None, model_store: Path) -> Path:
    """Download the archive at `url` into the model store and return its path. Raises SlotwiseError for another SHA-256."""
    expected = (sha256 or "").lower()
    if not SHA256.fullmatch(expected):
        what = "is no SHA-256 (64 hexadecimal digits)" if sha256 else "comes without a digest"
        raise SlotwiseError(f"{url} {what}", "give --sha256; whoever built the archive gets it from `slotwise inspect`")
    name = Path(unquote(urlsplit(url).path)).name
    if not name.endswith(".mar"):
        raise SlotwiseError(f"{url} does not name a .mar file", "give the URL of an archive")
    target = model_store / name
    if target.is_file() and file_sha256(target) == expected:
        return target
    if target.exists():
        raise SlotwiseError(f"{target} is there already, with another content", "move it away first")
    partial = model_store / f".{name}.{os.getpid()}.partial"
    try:
        observed = _received(url, partial, follow_redirects=True)
        if observed != expected:
            raise SlotwiseError(f"{url} is not the archive you want: its SHA-256 is {observed}", "ask whoever built it")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def download(url: str, target: Path) -> str:
    """Download what is at this very URL into a new file; returns its SHA-256. Raises SlotwiseError.

    A redirect is refused: whoever allowed the URL did not allow where it leads.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        digest = _received(url, partial, follow_redirects=False)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return digest


def _received(url: str, partial: Path, *, follow_redirects: bool) -> str:
    import httpx  # noqa: PLC0415  slow to import

    digest = hashlib.sha256()
    try:
        with httpx.stream("GET", url, follow_redirects=follow_redirects, timeout=60) as response, partial.open("wb") as file:
            response.raise_for_status()  # a redirect that is not followed, too
            for block in response.iter_bytes():
                if file.tell() + len(block) > MAX_UNPACKED_BYTES:
                    raise SlotwiseError(f"{url} is larger than {MAX_UNPACKED_BYTES >> 30} GiB", "check the address")
                digest.update(block)
                file.write(block)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SlotwiseError(f"{url} cannot be downloaded: {error}", "check the address") from error
    return digest.hexdigest()
