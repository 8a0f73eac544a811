"""The token that a request has to bring to a host of ours: `Authorization: Bearer TOKEN`, refused in TorchServe's words."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from slotwise.files.disk import written_whole

STATUS = 400
TYPE = "InvalidKeyException"
MESSAGE = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
KINDS = ("management", "inference", "API")


class Tokens:
    """A server's tokens, one of each kind. key_file.json has them in TorchServe's form, for who may read its folder."""

    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / "key_file.json"
        self.now: Mapping[str, str] = {}
        self._set({kind: _new() for kind in KINDS})

    def opens(self, kind: str, authorization: bytes) -> bool:
        """Whether this header carries the token of that kind."""
        return hmac.compare_digest(authorization, b"Bearer " + self.now[kind].encode())

    def renew(self, kind: str) -> None:
        """Make a new token of this kind; the old one opens nothing from now on."""
        self._set({**self.now, kind: _new()})

    def _set(self, tokens: Mapping[str, str]) -> None:
        """Write them, then let them open: where there is no room for the file, those that it has go on."""
        with written_whole(self._file) as partial:
            partial.touch(mode=0o600)
            partial.write_text(json.dumps({kind: {"key": token} for kind, token in tokens.items()}, indent=2), "utf-8")
        self.now = tokens


def _new() -> str:
    return secrets.token_urlsafe(24)


def digest(token: str) -> str:
    """What stands for a token in settings that others can read."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def brings(authorization: str, expected: str) -> bool:
    """Whether the header carries the token with this digest."""
    scheme, _, token = authorization.partition(" ")
    return scheme == "Bearer" and hmac.compare_digest(digest(token), expected)
