"""Schemathesis: whatever the schema allows, and much that it does not, is answered as the schema says and never with a 500."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.schema import try_out

from .live import StandInThread

schemathesis = pytest.importorskip("schemathesis")
from schemathesis import GenerationMode  # noqa: E402


def test_no_request_is_a_500_and_every_answer_is_in_the_schema(tmp_path: Path) -> None:
    server = StandInThread(models={"digits": 1, "captions": 1, "translation": 1})
    with server.front(tmp_path) as gateway:
        schema = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")
        for found in schema.get_all_operations():
            for mode in GenerationMode:
                try_out(found.ok(), mode)
