"""A real host with JSON logs and an access log, and a gateway before it: who asked what is told, and nobody's secrets are."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from slotwise.errors import SlotwiseError
from slotwise.frontend.admission import keys
from slotwise.log_format import ACCESS_VARIABLE, VARIABLE
from tests.backends.streaming_models import streaming_archive
from tests.server.conftest import started

SECRET = "s3cr3t-7f2b"
HANDLER = """
import os
from slotwise.worker import BadRequest, BatchHandler

class Anything(BatchHandler):
    def load(self, model_dir, settings):
        return None

    def example(self):
        return b"example"

    def decode(self, body, headers):
        print("a print of the handler")
        if b"refuse" in body:
            raise BadRequest("this is refused")
        return [body]

    def collate(self, items):
        return items

    def predict(self, inputs):
        if any(b"exit" in item for item in inputs):
            os._exit(3)
        if any(b"poison" in item for item in inputs):
            raise ValueError("a poison")
        return [len(item) for item in inputs]

    def encode(self, output, item):
        return {"length": output}

handle = Anything.entry_point()
"""


@pytest.mark.slow
@pytest.mark.server
def test_planted_secrets_are_in_no_log_of_a_real_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "json")
    monkeypatch.setenv(ACCESS_VARIABLE, "json")
    store, home, file = tmp_path / "store", tmp_path / "home", tmp_path / "keys.json"
    streaming_archive(tmp_path, "anything", HANDLER, store)
    shop, other = keys.add(file, "shop"), keys.add(file, "other")
    with started("slotwise", home, store) as live:
        live.management.register("anything.mar", batch_size=4, max_batch_delay=50, initial_workers=1, response_timeout=60)
        live.management.wait_ready("anything")
        options = ("--keys", str(file), "--access-log", "json", "--log-format", "json", "--remember", "500")
        with live.front(*options) as front, httpx.Client(base_url=front.url, timeout=100, trust_env=False) as client:

            def ask(path: str, body: str, identity: str, key: str = shop, **headers: str) -> int:
                sent = {"x-request-id": identity, "x-api-key": key, "cookie": SECRET, **headers}
                return client.post(path, content=f"{body} {SECRET}", headers=sent).status_code

            known = "/predictions/anything"
            statuses = [
                ask(known, "fine", "r-1"),
                ask(known, "refuse", "r-2"),
                ask(known, "poison", "r-3"),
                ask(known, "exit", "r-4"),
                ask(known, "fine", "r-5", key=SECRET),
                ask(f"/predictions/{SECRET}", "fine", "r-6"),
                ask(f"{known}?token={SECRET}", "fine", "r-7", key=other),
                ask("/v1/models/anything:predict", "no JSON", "r-8"),
            ]
            assert statuses == [200, 400, 500, 500, 401, 404, 200, 400]
            told = front.asked("/status/requests/r-4")
            assert (told["status"], told["key"], len(told["batches"])) == (500, "shop", 2)
            assert told["reason"] == "the worker ended on this request, and another one when it went alone"
            assert [call["error"] for call in front.asked("/status/requests/r-3")["batches"][0]["calls"]] == ["ValueError"]
            last = front.asked("/status/top")["last"]["models"]["anything"]
            assert sum(last["errors"].values()) == 4
            with pytest.raises(SlotwiseError, match="no such request is remembered"):
                front.asked("/status/requests/r-99")
            seen = client.get("/status/requests/r-4", headers={"x-api-key": shop})
            assert seen.status_code == 403
            told_all = json.dumps([front.asked(f"/status/requests/r-{i}") for i in range(1, 9)])
    logs = {one.name: one.read_text("utf-8", "replace") for one in home.rglob("*.log")}
    assert {"server.log", "gateway.log", "model_log.log"} <= set(logs)
    for hidden in (SECRET, shop, other):
        assert [name for name, text in logs.items() if hidden in text] == []
        assert hidden not in told_all
    lines = [json.loads(line) for line in logs["model_log.log"].splitlines()]
    assert {(line["model"], line["worker"][:9]) for line in lines} == {("anything", "anything_")}
    assert "a print of the handler" in {line["message"] for line in lines}
    access = [json.loads(line) for line in logs["server.log"].splitlines() if '"logger": "access"' in line]
    reasons = {line.get("request_id"): (line["status"], line.get("key"), line.get("reason")) for line in access}
    assert reasons["r-2"] == (400, "shop", "the model answered so")
    assert reasons["r-5"] == (401, None, "this key is not known")
    assert reasons["r-6"] == (404, "shop", "there is no such model")
