"""What only the real servers can show of a request: several parts of one name, explanations, its id in the log."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import httpx

from slotwise.archive.build import build
from tests.server.conftest import Live
from tests.support.waiting import until

OWN = """
import numpy as np
from slotwise.worker import BadRequest, BatchHandler

class Own(BatchHandler):
    def load(self, model_dir, settings):
        return lambda rows: 2 * rows

    def read(self, request):
        if "both" in request.query:
            return [{"query": dict(request.query)}]
        if request.fields.get("left"):
            return [{name: [part.decode() for part in parts] for name, parts in request.fields.items()}]
        return super().read(request)

    def decode(self, body, headers):
        self.metrics.count("own numbers", 1)
        try:
            return [float(body)]
        except ValueError:
            raise BadRequest("no number") from None

    def collate(self, items):
        return items

    def predict(self, inputs):
        return [item if isinstance(item, dict) else 2 * item for item in inputs]

handle = Own.entry_point()
"""


def test_a_request_as_the_servers_hand_it_over(live: Live, store: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "model.toml").write_text('name = "own"\nhandler = "own.py"\n')
    build(tmp_path, store)
    base = f"http://127.0.0.1:{live.record.ports.inference}"
    with live.registered("own"), httpx.Client(base_url=base, headers=live.inference_headers(), timeout=60) as client:

        def asked(**sent: Any) -> Any:
            return client.post("/predictions/own", **sent)

        several = asked(files=[("data", ("a", b"1")), ("data", ("b", b"no")), ("data", ("c", b"3"))])
        assert several.json() == [2.0, {"error": {"code": 400, "message": "no number"}}, 6.0]
        assert asked(files=[("left", ("a", b"1")), ("right", ("b", b"2"))]).json() == {"left": ["1"], "right": ["2"]}
        packed = asked(content=gzip.compress(b"21"), headers={"content-encoding": "gzip"})
        assert (packed.status_code, packed.json()) == (200, 42.0)
        assert asked(content=b"21", headers={"content-encoding": "br"}).status_code == 415
        address = "/predictions/own" if live.record.kind == "slotwise" else "/invocations"
        named = client.post(address, params={"model_name": "own", "both": "yes"}, content=b"1")
        assert named.json()["query"]["both"] == "yes", "of /predictions/MODEL neither Java server hands the query on"
        assert asked(content=b"4").json() == 8.0
        refused = asked(content=b"no", headers={"x-request-id": "find-me-in-the-log"})
        assert refused.status_code == 400
        if live.record.kind == "torchserve":
            assert client.post("/explanations/own", content=b"1").status_code == 501
    log = live.record.state_dir / "logs" / "model_log.log"
    until(lambda: "find-me-in-the-log: 400" in log.read_text("utf-8", "replace"), "it is not in the log")
