"""An echo that says in a header whose message code its worker uses, and on TorchServe streams two pieces before an answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from slotwise.worker import BatchHandler, Headers, Settings


class Echo(BatchHandler):
    """A body's text comes back."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return lambda texts: texts

    def example(self) -> Any:
        return "a text"

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [body.decode()]

    def collate(self, items: list[Any]) -> Any:
        return items

    def response_headers(self) -> dict[str, str]:
        package = "ts" if "ts.service" in sys.modules else "mms"
        reads: Any = sys.modules[f"{package}.protocol.otf_message_handler"]
        frames = hasattr(sys.modules[f"{package}.service"].create_predict_response, "frames")
        return {"x-codec": "slotwise" if hasattr(reads._retrieve_buffer, "slotwise") else package, "x-frames": str(frames)}


answer = Echo.entry_point()


def handle(data: Any, context: Any) -> Any:
    """What the server calls: with `data=None` at the start, then once a batch. It streams where all bodies say so."""
    if data and all(row["body"].startswith(b"stream") for row in data):
        from ts.handler_utils.utils import send_intermediate_predict_response

        for piece in (b"one ", b"two "):
            pieces = [piece] * len(data)
            send_intermediate_predict_response(pieces, context.request_ids, "Intermediate Prediction success", 200, context)
    return answer(data, context)
