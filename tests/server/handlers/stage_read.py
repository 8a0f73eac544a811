"""The last stage: a part [id, place, doing] becomes id * 1000 + place, or misbehaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stage_misbehaving import misbehave

from slotwise.worker import BadRequest, BatchHandler, Headers, Settings


class Read(BatchHandler):
    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.answer: dict[str, Any] = {}
        return lambda rows: misbehave([row["do"] for row in rows], rows, [str(row["id"]) for row in rows])

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        number, place, do = json.loads(body)
        if do == "refuse":
            raise BadRequest(f"refused: {number}")
        return [{"id": number, "place": place, "do": do}]

    def collate(self, items: list[Any]) -> Any:
        return items

    def encode(self, output: Any, item: Any) -> Any:
        if output["do"] == "encode":
            raise KeyError(f"{self.answer}")
        self.answer["value"] = item["id"] * 1000 + item["place"]
        if output["do"] == "nan":
            return float("nan")
        return self.answer


handle = Read.entry_point()
