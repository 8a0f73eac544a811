"""What a handler answers as an error stays as it is; what its guard or worker says of it gets TorchServe's shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slotwise.drop_in.inference_api import error_of
from slotwise.worker.slot_errors import BadRequest


def test_an_error_of_a_guard_gets_torchserves_shape() -> None:
    body = error_of(400, json.dumps(BadRequest("no picture").body()).encode(), "id")
    assert "no picture" in json.loads(body or b"{}")["error"]["message"]


def test_so_does_one_whose_code_no_status_has() -> None:
    """A handler's `PredictionException("...", 513)`: its client gets 500."""
    body = error_of(500, b'{"error": {"code": 513, "message": "too few columns"}}', "id")
    assert "too few columns" in (body or b"").decode()
    assert error_of(500, b'{"error": {"code": "E7", "message": "too few columns"}}', "id") is None


@pytest.mark.parametrize(
    "error",
    [
        {"code": "NOT_FOUND", "message": "no such user", "details": [1]},
        {"code": 404, "message": "no such user", "field": "name"},
        {"code": 7, "message": "no such user"},
        {"message": "no such user"},
        "no such user",
        [1],
        None,
    ],
)
def test_an_error_of_a_handler_stays_whatever_is_in_it(error: Any) -> None:
    assert error_of(404, json.dumps({"error": error}).encode(), "id") is None
    assert error_of(404, json.dumps({"error": {"code": 404, "message": "x"}, "more": error}).encode(), "id") is None
