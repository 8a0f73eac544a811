"""Schemathesis: whatever the schema allows, and much that it does not, is answered as the schema says and never with a 500."""

from __future__ import annotations

from pathlib import Path

from tests.support.schema import try_all

from .live import StandInThread


def test_no_request_is_a_500_and_every_answer_is_in_the_schema(tmp_path: Path) -> None:
    server = StandInThread(models={"digits": 1, "captions": 1, "translation": 1})
    with server.front(tmp_path) as gateway:
        try_all(f"{gateway.url}/openapi.json")
