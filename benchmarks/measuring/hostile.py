"""Pictures that are dear to decode beside a model's own example: how long the example waits, and what becomes of the others."""

from __future__ import annotations

import io
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.bench.bodies import examples
from slotwise.client.inference import InferenceClient
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.deploy.deploy import deploy, registration
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import ServerRecord

MODELS = {"digits": None, "efficientnet": None, "ants_bees": "none", "resnet18": "none", "resnet152": "none", "captions": None}
TIMEOUT_S = 10


def bodies() -> dict[str, list[bytes]]:
    """16 WebPs of 7070 x 7070 pixels in one colour; 7 PNGs of 7000 x 7000 pixels of 16 bits."""
    webp, png = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (7070, 7070), (200, 10, 30)).save(webp, "WEBP", lossless=True, method=0)
    Image.fromarray(np.full((7000, 7000), 40_000, np.uint16)).save(png, "PNG", compress_level=1)
    return {f"16 WebPs of {webp.tell()} bytes": [webp.getvalue()] * 16, "7 PNGs of 49 megapixels": [png.getvalue()] * 7}


def measure(record: ServerRecord, work: Path, rounds: int) -> dict[str, Any]:
    """Every picture model under the profile cpu, with a response timeout of TIMEOUT_S."""
    table = []
    with ManagementClient(record) as management, InferenceClient(record, timeout_s=60) as client:
        for model, weights in MODELS.items():
            info = inspect(build(model, work / "store", weights))
            settings = {**registration(info, load_profile("cpu", environ={}), {}), "response_timeout": TIMEOUT_S}
            deploy(management, info, {**settings, "max_batch_delay": 500})
            pids = [worker.pid for worker in management.describe(model).workers]
            example = examples(str(info.path))[0].data
            for what, dear in bodies().items():
                seconds, statuses = [], Counter[int]()
                for _ in range(rounds):
                    with ThreadPoolExecutor(len(dear)) as pool:
                        others = [pool.submit(client.predict, model, body) for body in dear]
                        started = time.monotonic()
                        status = client.predict(model, example).status_code
                        seconds.append(round(time.monotonic() - started, 2))
                        statuses.update(other.result().status_code for other in others)
                alive = pids == [worker.pid for worker in management.describe(model).workers]
                row = {"model": model, "others": what, "status": status, "seconds": seconds, "same_workers": alive}
                table.append({**row, "statuses": dict(statuses)})
                say(str(table[-1]))
            management.unregister(model)
    return {"hostile": table}
