"""Find TorchServe's tokens, and renew them where they have expired.

There is one valid token of each kind, and a renewal makes the last one worthless for everybody else. So a
token is read from the server's key_file.json each time, renewed only when it has expired, and when one is refused the file
is read again first: somebody else may have renewed it. Only one renews at a time, and who has waited for that reads again.
MMS has no tokens.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import httpx

from slotwise.errors import SlotwiseError
from slotwise.files.disk import locked

if TYPE_CHECKING:
    from slotwise.server.lifecycle import ServerRecord

TokenKind = Literal["inference", "management"]

MARGIN = timedelta(seconds=5)
AGAIN_S = 0.1
REFUSED = ("InvalidKeyException",)
_renewing = threading.Lock()


def token(record: ServerRecord, kind: TokenKind, for_s: float = 0.0) -> str | None:
    """The token that is valid now, renewed where it has expired or will within for_s; None where the server has none.

    Raises SlotwiseError where a TorchServe has no key_file.json.
    """
    if record.kind == "mms":
        return None
    entry = _keys(record).get(kind, {})
    if _expired(entry, for_s):
        with ExitStack() as alone:
            alone.enter_context(_renewing)
            with suppress(OSError):  # a folder that is not ours
                alone.enter_context(locked(record.state_dir / "key_file.json"))
            keys = _keys(record)
            entry = keys.get(kind, {})
            if _expired(entry, for_s):
                return _renew(record, kind, keys)
    return str(entry["key"])


def auth_headers(record: ServerRecord, kind: TokenKind = "inference", for_s: float = 0.0) -> dict[str, str]:
    """The header that carries the token, which is valid for so long; empty for MMS."""
    valid = token(record, kind, for_s)
    return {} if valid is None else {"Authorization": f"Bearer {valid}"}


def was_refused(response: httpx.Response) -> bool:
    """Whether the answer says that the token, not the request, was wrong."""
    if response.status_code != 400:
        return False
    try:
        body = response.json()
    except ValueError:
        return False
    return isinstance(body, dict) and body.get("type") in REFUSED


def _keys(record: ServerRecord) -> dict[str, Any]:
    path = record.state_dir / "key_file.json"
    try:
        try:
            keys: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except ValueError:  # the server is just writing it
            time.sleep(AGAIN_S)
            keys = json.loads(path.read_text("utf-8"))
        return keys
    except (OSError, ValueError) as error:
        raise SlotwiseError(
            f"the server's tokens cannot be read: {error}", "is it running? `slotwise serve` starts one"
        ) from error


def _expired(entry: dict[str, Any], for_s: float) -> bool:
    try:
        ends = datetime.fromisoformat(entry["expiration time"])
    except (KeyError, ValueError, TypeError):
        return "key" not in entry
    return datetime.now(UTC) + MARGIN + timedelta(seconds=for_s) > ends


def _renew(record: ServerRecord, kind: TokenKind, keys: dict[str, Any]) -> str:
    """Ask for a new token with the key that never expires; the server writes the file itself."""
    try:
        response = httpx.get(
            f"{record.management_url}/token",
            params={"type": kind},
            headers={"Authorization": f"Bearer {keys['API']['key']}"},
            trust_env=False,
        )
        response.raise_for_status()
    except (httpx.HTTPError, KeyError) as error:
        raise SlotwiseError(f"the {kind} token has expired and could not be renewed: {error}", "restart the server") from error
    return str(_keys(record)[kind]["key"])
