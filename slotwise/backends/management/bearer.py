"""The token that a request has to bring to a host of ours: `Authorization: Bearer TOKEN`, refused in TorchServe's words."""

from __future__ import annotations

import hashlib
import hmac

STATUS = 400
TYPE = "InvalidKeyException"
MESSAGE = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"


def digest(token: str) -> str:
    """What stands for a token in settings that others can read."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def brings(authorization: str, expected: str) -> bool:
    """Whether the header carries the token with this digest."""
    scheme, _, token = authorization.partition(" ")
    return scheme == "Bearer" and hmac.compare_digest(digest(token), expected)
