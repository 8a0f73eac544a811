"""The model without any server: the same decode pool, batch, engine and threads in a loop. Started by systems.Raw.

stdin: one JSON line a measurement, {"body": PATH, "seconds": S}; stdout: "ready", then pictures a second, a line each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def main() -> None:
    """argv: the unpacked archive, then the worker's settings and the batch size as JSON."""
    model_dir, given = Path(sys.argv[1]), json.loads(sys.argv[2])
    os.environ["OMP_NUM_THREADS"] = str(given["threads"])
    import numpy as np

    from slotwise.worker import Settings
    from slotwise.worker.engines import load_engine
    from slotwise.worker.inputs.images import Recipe

    batch_size = given.pop("batch_size")
    model = json.loads((model_dir / "slotwise.json").read_text("utf-8"))["model"]
    settings = Settings(model=model, batch_size=batch_size, **given)
    engine, recipe = load_engine(model_dir, settings), Recipe.of(model["input"])
    pool = ThreadPoolExecutor(settings.decode_threads)

    def batch(body: bytes) -> Any:
        logits = np.asarray(engine(np.stack(list(pool.map(recipe, [body] * batch_size)))))  # [b, labels]
        grown = np.exp(logits - logits.max(axis=1, keepdims=True))
        return grown / grown.sum(axis=1, keepdims=True)

    print("ready", flush=True)
    for line in sys.stdin:
        options = json.loads(line)
        body = Path(options["body"]).read_bytes()
        batch(body)
        done, started = 0, time.perf_counter()
        while (seconds := time.perf_counter() - started) < options["seconds"]:
            batch(body)
            done += batch_size
        print(done / seconds, flush=True)


if __name__ == "__main__":
    main()
