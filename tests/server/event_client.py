"""A client of a live server's streams."""

from __future__ import annotations

import json

import httpx

from tests.server.conftest import Live

PATIENCE_S = 120.0
EVENTS = {"accept": "text/event-stream", "content-type": "application/json"}


def client_to(live: Live) -> httpx.Client:
    """A client that shows its token; to be closed."""
    return httpx.Client(
        base_url=live.record.inference_url, headers=live.inference_headers(), timeout=PATIENCE_S, trust_env=False
    )


def events(text: str) -> list[tuple[str, dict[str, object]]]:
    """The events of a stream: kind and data."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            kind = next((line[7:] for line in lines if line.startswith("event: ")), "piece")
            found.append((kind, json.loads("\n".join(line[6:] for line in lines if line.startswith("data: ")))))
    return found
