"""Who may ask: keys with names, the models that each may use, and how often.

A key is 32 random bytes, printed once. Its SHA-256 stands in the file, and needs no salt: nobody can guess such a key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import math
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from slotwise.errors import SlotwiseError
from slotwise.gateway.replies import Refused

log = logging.getLogger("slotwise.gateway")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}").fullmatch
OWN = "slotwise"  # the name of the gateway's own key, by which the commands on its machine ask it for its state
LOOK_AGAIN_S = 1.0


@dataclass(frozen=True)
class AccessKey:
    """One key. models: those that it may use, all where empty. requests_per_s: 0 means any number."""

    name: str
    sha256: str
    models: tuple[str, ...] = ()
    requests_per_s: float = 0.0


@dataclass
class _Bucket:
    """What a key has left: a second's requests at most, one at least."""

    tokens: float
    filled_at: float


@dataclass
class KeyFile:
    """The keys of a file, read again when it changes; and the gateway's own, which stands in no file of keys."""

    file: Path
    own: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    def __post_init__(self) -> None:
        self._keys = read(self.file)
        self._own = AccessKey(OWN, _sha256(self.own))
        self._stamp = self._stat()
        self._looked_at = time.monotonic()
        self._buckets: dict[str, _Bucket] = {}

    def find(self, headers: Mapping[bytes, bytes]) -> AccessKey:
        """The key that a request carries. Raises Refused (401)."""
        given = headers.get(b"x-api-key", b"")
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            given = token.strip()
        digest, found = hashlib.sha256(given).hexdigest(), None
        for key in (self._own, *self._current()):  # all of them, so that the time tells nothing
            if hmac.compare_digest(digest, key.sha256):
                found = key
        if found is None:
            what = "this key is not known" if given else "this needs a key: Authorization: Bearer KEY, or x-api-key: KEY"
            raise Refused(401, what, extra=[(b"www-authenticate", b"Bearer")])
        return found

    def allow(self, key: AccessKey, model: str) -> None:
        """Count one request of this key to that model. Raises Refused (403, 429)."""
        if key.models and model not in key.models:
            raise Refused(403, "this key may not use this model")
        if not key.requests_per_s:
            return
        now, most = time.monotonic(), max(key.requests_per_s, 1.0)
        bucket = self._buckets.setdefault(key.name, _Bucket(most, now))
        bucket.tokens = min(most, bucket.tokens + (now - bucket.filled_at) * key.requests_per_s)
        bucket.filled_at = now
        if bucket.tokens < 1:
            wait_s = (1 - bucket.tokens) / key.requests_per_s
            raise Refused(429, f"this key may ask {key.requests_per_s:g} times a second", retry_after_s=math.ceil(wait_s))
        bucket.tokens -= 1

    def _current(self) -> list[AccessKey]:
        """The keys as the file says now; where it cannot be read, as it said before."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_AGAIN_S:
            self._looked_at = now
            if self._stat() != self._stamp:
                try:
                    self._keys = read(self.file)
                    self._stamp = self._stat()
                except SlotwiseError as error:
                    log.error("%s; the keys from before go on working", error)
        return self._keys

    def _stat(self) -> tuple[int, int]:
        try:
            found = self.file.stat()
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_size


def read(file: Path) -> list[AccessKey]:
    """The keys in a file. Raises SlotwiseError."""
    try:
        found = [
            AccessKey(**{**entry, "models": tuple(entry.get("models", ()))})
            for entry in json.loads(file.read_text("utf-8"))["keys"]
        ]
    except FileNotFoundError:
        raise SlotwiseError(f"there is no file of keys {file}", f"`slotwise key add NAME --keys {file}` makes one") from None
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise SlotwiseError(f"the keys in {file} cannot be read: {error}", "`slotwise key add` writes such a file") from error
    if any(len(key.sha256) != 64 or not key.sha256.isascii() for key in found):
        raise SlotwiseError(f"{file} has a key without its SHA-256", "`slotwise key add` writes such a file")
    return found


def write(file: Path, keys: list[AccessKey]) -> None:
    """Write a file of keys that only its owner can read, in one step."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        json.dump({"keys": [asdict(key) for key in keys]}, stream, indent=2)
    partial.replace(file)


def add(file: Path, name: str, models: tuple[str, ...] = (), requests_per_s: float = 0.0) -> str:
    """A new key, which stands nowhere else from now on: the file holds its SHA-256. Raises SlotwiseError."""
    keys = read(file) if file.exists() else []
    if not NAME(name) or name == OWN:
        raise SlotwiseError(f"{name!r} is no name for a key", "letters, digits, '_', '.' and '-', at most 64")
    if any(key.name == name for key in keys):
        raise SlotwiseError(f"there is a key named {name!r} in {file}", f"`slotwise key remove {name}` first, or another name")
    new = secrets.token_urlsafe(32)
    write(file, [*keys, AccessKey(name, _sha256(new), models, requests_per_s)])
    return new


def remove(file: Path, name: str) -> None:
    """The key of that name opens nothing any more; a running gateway notices within a second. Raises SlotwiseError."""
    keys = read(file)
    if all(key.name != name for key in keys):
        raise SlotwiseError(f"there is no key named {name!r} in {file}", "`slotwise key list` shows them")
    write(file, [key for key in keys if key.name != name])


def _sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
