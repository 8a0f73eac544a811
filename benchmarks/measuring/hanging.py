"""A stand-in for a model server that accepts some requests and never answers them, as both servers do when a worker dies."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from slotwise.profiles.ports import Ports
from slotwise.server.lifecycle import ServerRecord

MODEL = "standin"
TAKES_S = (0.02, 0.1)
DESCRIBED = {"modelName": MODEL, "modelVersion": "1.0", "modelUrl": f"{MODEL}.mar", "batchSize": 16, "maxBatchDelay": 1}
WORKERS = [{"id": "9000", "pid": 1, "status": "READY", "memoryUsage": 1}]
SLOT = {"x-batch-size": "1", "x-batch-slot": "0"}


class Hanging:
    """The stand-in: every `every`-th request (0: none) hangs, the others take a random time within TAKES_S."""

    def __init__(self) -> None:
        self.every = self.seen = 0

    async def predict(self, request: web.Request) -> web.Response:
        """Answer, or do not."""
        await request.read()
        self.seen += 1
        if self.every and self.seen % self.every == 0:
            await asyncio.Event().wait()
        await asyncio.sleep(random.uniform(*TAKES_S))
        return web.json_response({"answer": 1}, headers=SLOT)

    async def manage(self, request: web.Request) -> web.Response:
        """What the gateway asks the management API."""
        models: Any = {"models": [{"modelName": MODEL, "modelUrl": f"{MODEL}.mar"}]}
        return web.json_response([{**DESCRIBED, "workers": WORKERS}] if "name" in request.match_info else models)

    async def serve(self, port: int, up: threading.Event, end: threading.Event) -> None:
        """Listen until `end`."""
        app = web.Application()
        app.router.add_post("/predictions/{model}", self.predict)
        app.router.add_get("/models", self.manage)
        app.router.add_get("/models/{name}", self.manage)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        up.set()
        while not end.is_set():
            await asyncio.sleep(0.1)
        await runner.cleanup()


@contextmanager
def standin(home: Path) -> Iterator[Hanging]:
    """The stand-in, with the record that a gateway of this $SLOTWISE_HOME reads."""
    hanging, up, end, port = Hanging(), threading.Event(), threading.Event(), Ports.free().inference
    folder = home / "default"
    folder.mkdir()
    ends = {"expiration time": "9999-01-01T00:00:00+00:00"}
    (folder / "key_file.json").write_text(json.dumps({"inference": {"key": "k", **ends}, "management": {"key": "k", **ends}}))
    ServerRecord(
        name="default",
        kind="torchserve",
        pid=1,
        ports=Ports(port, port, port),
        profile="cpu",
        overrides={},
        model_store=folder,
        state_dir=folder,
        tmp_dir=folder,
        run_id="standin",
    ).save()
    thread = threading.Thread(target=lambda: asyncio.run(hanging.serve(port, up, end)))
    thread.start()
    up.wait()
    try:
        yield hanging
    finally:
        end.set()
        thread.join()
