"""What nobody waits for any more: a real worker does not begin it, and everybody else in its batch is answered."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from slotwise.archive.inspection import extract
from slotwise.backends.exchange import BackendRequest, Refused
from slotwise.backends.local.prints import FilePrints
from slotwise.backends.local.served_model import ModelSettings, ServedModel
from tests.backends.streaming_models import streaming_archive

SLOW = """
import time
import numpy as np
from slotwise.worker import BatchHandler

class Slow(BatchHandler):
    def load(self, model_dir, settings):
        return None

    def decode(self, body, headers):
        print("decoded", body.decode(), flush=True)
        if body == b"slow":
            time.sleep(1.0)
        return [body.decode()]

    def collate(self, items):
        return items

    def predict(self, batch):
        print("ran", *batch, flush=True)
        if "bad" in batch:
            time.sleep(1.0)
            raise ValueError("on purpose")
        return batch

    def encode(self, output, request):
        return {"item": output}

handle = Slow.entry_point()
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ModelSettings:
    folder = tmp_path_factory.mktemp("slow")
    archive = streaming_archive(folder, "slow", SLOW)
    return ModelSettings(
        name="slow",
        version="1.0",
        archive=archive,
        model_dir=extract(archive, folder / "model"),
        environ={**os.environ, "SLOTWISE_PROFILE": "cpu", "SLOTWISE_OVERRIDES": '{"decode_threads": 1, "proof_s": 0.0}'},
        prints=FilePrints(folder / "log"),
        batch_size=4,
    )


def asked(body: str) -> BackendRequest:
    return BackendRequest("slow", time.monotonic() + 120, f"r-{body}", body=body.encode())


@pytest.mark.parametrize("how", ["leaves", "is late", "breaks off"])
@pytest.mark.parametrize("first", ["slow", "bad"])
def test_what_has_not_begun_is_not_run(settings: ModelSettings, first: str, how: str) -> None:
    log = settings.prints.path  # type: ignore[attr-defined]
    gone, others = f"gone {how}", ["1", "2"]

    async def history() -> None:
        served = ServedModel(settings)
        served.scale(1)
        while not served.queue.workers:
            await asyncio.sleep(0.05)
        log.write_text("")
        bodies = [first, "1", gone, "2"]
        requests = [asked(body) for body in bodies]
        if how == "is late":
            requests[2].deadline = time.monotonic() + 0.4
        clients = [asyncio.ensure_future(served.answer(request)) for request in requests]
        while "decoded slow" not in log.read_text() and "ran bad" not in log.read_text():
            await asyncio.sleep(0.01)
        if how == "leaves":
            requests[2].leave()
        elif how == "breaks off":
            clients[2].cancel()
        answers = await asyncio.gather(*clients, return_exceptions=True)
        assert [getattr(answers[i], "body", answers[i]) for i in (1, 3)] == [b'{"item": "%s"}' % one.encode() for one in others]
        assert getattr(answers[0], "status", None) == (200 if first == "slow" else 500)
        assert isinstance(answers[2], Refused | asyncio.CancelledError)
        assert served.ledger.open == 0
        assert served.ledger.ended["answered"] == 3
        assert (await served.answer(asked("next"))).status == 200  # and nothing of it is left
        await served.close(5)

    asyncio.run(history())
    said = log.read_text().splitlines()
    if first == "slow":
        assert f"decoded {gone}" not in said
    ran = [line for line in said if line.startswith("ran")]
    assert not any(gone in line for line in ran[1 if first == "bad" else 0 :])
    assert any("2" in line for line in ran[-3:])
