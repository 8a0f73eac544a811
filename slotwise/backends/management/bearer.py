"""The token that a request has to bring to a host of ours: `Authorization: Bearer TOKEN`, refused in TorchServe's words."""

from __future__ import annotations

import hmac
import json
import math
import secrets
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from slotwise.files.disk import written_whole

STATUS = 400
TYPE = "InvalidKeyException"
MESSAGE = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
NO_NEW_TOKEN = "Token Authentication failed. Token either incorrect, expired, or not provided correctly"
KINDS = ("management", "inference", "API")


class Tokens:
    """A server's tokens, one of each kind. key_file.json has them in TorchServe's form, for who may read its folder.

    lifetime_s: how long one opens, that of the API's but for; 0: as long as the server runs. at_once: write the file now; else
    `write` does, and until then another server's stands there.
    """

    def __init__(self, folder: Path, lifetime_s: float = 0.0, *, at_once: bool = True) -> None:
        self.file, self.lifetime_s = folder / "key_file.json", lifetime_s
        self.now: Mapping[str, str] = {kind: _new() for kind in KINDS}
        self._until: dict[str, float] = {}
        self._one_by_one = threading.Lock()  # renewals come from threads
        self._made(*KINDS)
        if at_once:
            self.write()

    def write(self) -> None:
        """Write the file."""
        with self._one_by_one:
            self._set(self.now)

    def remove(self) -> None:
        """Remove the file, unless it is another server's."""
        try:
            written = json.loads(self.file.read_text("utf-8"))
            if written["API"]["key"] == self.now["API"]:
                self.file.unlink()
        except (OSError, ValueError, KeyError, TypeError):
            return

    def opens(self, kind: str, authorization: bytes) -> bool:
        """Whether this header carries the token of that kind. Blanks around it are none of it, as on TorchServe."""
        if time.time() >= self._until.get(kind, math.inf):
            return False
        words = authorization.split()
        return len(words) == 2 and words[0] == b"Bearer" and hmac.compare_digest(words[1], self.now[kind].encode())

    def renew(self, kind: str) -> None:
        """Make a new token of this kind; the old one opens nothing from now on."""
        with self._one_by_one:
            before = dict(self._until)
            self._made(kind)
            try:
                self._set({**self.now, kind: _new()})
            except OSError:
                self._until = before
                raise

    def _made(self, *kinds: str) -> None:
        """Tokens of these kinds are made now."""
        if self.lifetime_s:
            self._until |= {kind: time.time() + self.lifetime_s for kind in kinds if kind != "API"}

    def _set(self, tokens: Mapping[str, str]) -> None:
        """Write them, then let them open: where there is no room for the file, those that it has go on."""
        with written_whole(self.file) as partial:
            partial.touch(mode=0o600)
            content = {kind: {"key": token, **self._expires(kind)} for kind, token in tokens.items()}
            partial.write_text(json.dumps(content, indent=2), "utf-8")
        self.now = tokens

    def _expires(self, kind: str) -> dict[str, str]:
        if kind not in self._until:
            return {}
        return {"expiration time": datetime.fromtimestamp(self._until[kind], UTC).isoformat().replace("+00:00", "Z")}


class NoTokens(Tokens):
    """Anybody may call."""

    def __init__(self) -> None:
        self.now = {}

    def write(self) -> None:
        """Nothing."""

    def remove(self) -> None:
        """Nothing."""

    def opens(self, kind: str, authorization: bytes) -> bool:
        """Always."""
        return True


def _new() -> str:
    return secrets.token_urlsafe(24)
