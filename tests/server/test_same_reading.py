"""What a handler gets of a request is the same on TorchServe and on our own host: random bodies, forms, types and addresses."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_plus

import httpx
import pytest

from slotwise.archive.build import build
from tests.server.conftest import started
from tests.support.seed import SEED

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(600)]

TOLD = """
from slotwise.worker import BatchHandler, TorchServeHandler

class Body(BatchHandler):
    def load(self, model_dir, settings):
        return None
    def example(self):
        return b"example"
    def decode(self, body, headers):
        return [body]
    def collate(self, items):
        return items
    def predict(self, inputs):
        return [bytes(item) for item in inputs]
    def encode(self, output, item):
        return {"body": output.decode("latin-1")}

class Row(TorchServeHandler):
    def initialize(self, context):
        pass
    def preprocess(self, data):
        return [repr({k: bytes(v) if isinstance(v, bytearray) else v for k, v in sorted(data[0].items())})]
    def inference(self, data):
        return data
    def postprocess(self, data):
        return list(data)

handle = CLASS.entry_point()
"""
NAMES = ("data", "body", "text", "image", "file", "x")
TEXTS = (
    "the fish was tasty",
    "a=b",
    "data=the fish",
    '{"text": "good"}',
    "[1, 2]",
    '"quoted"',
    "\u00e9 fish",
    "a & b",
    "a+b",
    "",
    " ",
)
FILES = (b"\x89PNG\r\n\x1a\n\x00\x01", b"\xff\xfe=\x00", b"a: b=c\nd")
TYPES = ("", "application/octet-stream", "application/x-www-form-urlencoded", "application/json", "text/plain", "image/png",
         "text/plain; charset=utf-8", "APPLICATION/JSON", "Application/X-WWW-Form-Urlencoded", "foo")  # fmt: skip
QUERIES = {"body": ("", "", "?top=1", "?data=x", "?body=the+fish&top=2"), "row": ("", "?data=x", "?body=the+fish")}
ASKED = 300


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The addresses of a gateway before each of the two, which have the same archives."""
    place = tmp_path_factory.mktemp("both")
    for name in ("Body", "Row"):
        folder = place / name.lower()
        folder.mkdir()
        (folder / "told.py").write_text(TOLD.replace("CLASS", name))
        (folder / "model.toml").write_text(f'name = "{name.lower()}"\nhandler = "told.py"\n')
        build(folder, place / "store", prove=lambda *_: None)
    with (
        started("torchserve", place / "a", place / "store") as theirs,
        started("slotwise", place / "b", place / "store") as ours,
    ):
        for live in (theirs, ours):
            for name in ("body", "row"):
                live.management.register(f"{name}.mar", batch_size=4, max_batch_delay=1, initial_workers=1)
                live.management.wait_ready(name, 1)
        with theirs.front() as before_theirs, ours.front() as before_ours:
            yield [before_theirs.url, before_ours.url]


def drawn(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """An address behind the gateway's, and what httpx is to send there."""

    def value() -> bytes:
        return draw.choice([draw.choice(TEXTS).encode(), draw.choice(TEXTS).encode(), draw.choice(FILES)])

    model = draw.choice(list(QUERIES))  # a row of our own host has the other parameters of the address, too
    path = f"/predictions/{model}{draw.choice(QUERIES[model])}"
    if draw.random() < 0.3:
        types = (None, "image/png", "application/json", "text/plain")
        parts = [
            (draw.choice(NAMES), (draw.choice([None, "a.png"]), value(), draw.choice(types)))
            for _ in range(draw.choice([1, 1, 2, 3]))
        ]
        return path, {"files": parts}
    fields = [(draw.choice(NAMES), draw.choice(TEXTS)) for _ in range(draw.choice([1, 1, 2]))]
    encoded = "&".join(f"{name}={quote_plus(text)}" for name, text in fields).encode()
    typed = "&".join(f"{name}={text}" for name, text in fields).encode()
    kind = draw.choice(TYPES)
    return path, {"content": draw.choice([value(), value(), encoded, typed]), "headers": {"content-type": kind} if kind else {}}


def told(http: httpx.Client, url: str, given: dict[str, Any]) -> tuple[int, Any]:
    """Status and answer; of an error the status only."""
    answer = http.post(url, **given)
    text = re.sub(r'"request_id": "[^"]*"', "", answer.text)
    return answer.status_code, text if answer.status_code == 200 else json.loads(answer.text)["error"]["code"]


def test_what_a_handler_gets_is_the_same(both: list[str]) -> None:
    draw = random.Random(SEED)
    differing = []
    with httpx.Client(timeout=120, trust_env=False) as http:
        for _ in range(ASKED):
            path, given = drawn(draw)
            theirs, ours = (told(http, url + path, given) for url in both)
            if theirs != ours:
                differing.append((path, given, theirs, ours))
    assert differing == []
