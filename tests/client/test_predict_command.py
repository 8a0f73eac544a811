"""`slotwise predict`: one file's trouble is no other file's."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from slotwise.cli import build_app
from slotwise.client.inference import InferenceClient
from slotwise.errors import SlotwiseError
from slotwise.server import lifecycle
from tests.client.test_management import record


def test_the_others_answers_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(self: InferenceClient, model: str, body: bytes) -> httpx.Response:
        if body == b"slow":
            raise SlotwiseError("the server did not answer in time")
        return httpx.Response(200, text=f"answer to {body.decode()}")

    monkeypatch.setattr(InferenceClient, "predict", predict)
    monkeypatch.setattr(lifecycle, "need", lambda name: record(tmp_path, "mms"))
    files = []
    for body in ("a", "slow", "b"):
        files.append(str(tmp_path / body))
        (tmp_path / body).write_text(body)
    told = CliRunner().invoke(build_app(), ["predict", "m", *files, "--json"])
    assert told.exit_code == 1
    assert [(one["status"], one["answer"]) for one in json.loads(told.stdout)] == [
        (200, "answer to a"),
        (None, "the server did not answer in time"),
        (200, "answer to b"),
    ]
