"""A stage that hands on the parts of its request, and misbehaves on request: {"id": 7, "do": "ok", "parts": ["ok", "raise"]}.

What a part is to do is the next stage's: tests/server/handlers/stage_read.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stage_misbehaving import misbehave

from slotwise.worker import BadRequest, BatchHandler, Headers, Settings, StagePart


class Find(BatchHandler):
    """One item a request, as many parts as it names."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.kept: list[Any] = []
        self.parts: list[Any] = []
        return lambda rows: misbehave([row["do"] for row in rows], rows, [str(row["id"]) for row in rows])

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        data = json.loads(body)
        if data["do"] == "refuse":
            raise BadRequest(f"refused: {data['id']}")
        return [data]

    def collate(self, items: list[Any]) -> Any:
        return items

    def encode(self, output: Any, item: Any) -> Any:
        if output["do"] == "encode":
            raise KeyError(f"{self.kept}")
        for held in self.kept:  # what it handed out before
            held.clear()
        parts = self.parts
        parts[:] = [
            StagePart(json.dumps([item["id"], i, do]).encode(), {"at": [item["id"], i]}) for i, do in enumerate(item["parts"])
        ]
        if output["do"] == "odd":
            parts[:] = [*parts, None, StagePart(b"x", {"x": object()}), StagePart("x", {}), {"answer": 1}]  # type: ignore[arg-type]
        if output["do"] == "flood":
            parts *= 300
        self.kept += [part.about for part in parts if isinstance(part, StagePart)]
        return parts


handle = Find.entry_point()
