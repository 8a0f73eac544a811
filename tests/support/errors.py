"""The one shape of an error."""

from __future__ import annotations

from typing import Any

import httpx


def error(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which must be in the one shape that errors have."""
    found = answer.json()["error"]
    assert set(found) == {"code", "message", "request_id"}
    assert found["code"] == answer.status_code
    assert found["request_id"] == answer.headers["x-request-id"]
    assert found["message"]
    return found
