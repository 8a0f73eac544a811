"""Runs as a process of its own: load an unpacked archive as the servers do, and time its handler on full batches.

    python -P offline_worker.py JOB.json

One JSON line on stdout for every batch size. The archive's folder is the working directory and comes first on sys.path,
so the archive's own `slotwise.worker` is what runs. Only the standard library is imported here.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

WARM_UPS = 2
LEAST_REPEATS = 5


class Context:
    """What a server hands to a handler, as far as handlers look."""

    metrics = None

    def __init__(self, manifest: dict[str, Any], model_dir: str, batch_size: int, headers: list[dict[str, str]]) -> None:
        self.manifest = manifest
        self.model_name = manifest["model"]["modelName"]
        self.system_properties = {
            "model_dir": model_dir,
            "batch_size": batch_size,
            "gpu_id": None,
            "limit_max_image_pixels": True,
        }
        self.request_ids = {i: f"offline-{i}" for i in range(len(headers))}
        self.codes = [200] * len(headers)
        self.sent: list[dict[str, str]] = [{} for _ in headers]
        self._headers = headers

    def get_all_request_header(self, idx: int) -> dict[str, str]:
        return self._headers[idx]

    def get_request_header(self, idx: int, key: str) -> str | None:
        return self._headers[idx].get(key)

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        self.codes[idx] = code

    def get_response_headers(self, idx: int) -> dict[str, str]:
        return self.sent[idx]

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        self.sent[idx][key.lower()] = value

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.set_response_header(idx, "content-type", value)


def load(model_dir: str) -> tuple[Any, dict[str, Any]]:
    """The handler's function and the manifest of the archive in `model_dir`."""
    os.chdir(model_dir)
    sys.path.insert(0, model_dir)
    manifest = json.loads(Path("MAR-INF/MANIFEST.json").read_text("utf-8"))
    module, _, name = manifest["model"]["handler"].partition(":")
    return getattr(importlib.import_module(module.removesuffix(".py")), name or "handle"), manifest


def time_batches(handle: Any, context: Any, rows: list[list[dict[str, bytes]]], seconds: float) -> list[dict[str, float]]:
    """Time `handle` on one batch after the other for so many seconds: total, decode and inference milliseconds each."""
    times, stop_at, turn = [], time.perf_counter() + seconds, 0
    while turn < WARM_UPS + LEAST_REPEATS or time.perf_counter() < stop_at:
        started = time.perf_counter()
        bodies = handle(rows[turn % len(rows)], context)
        total_ms = (time.perf_counter() - started) * 1000
        if any(code != 200 for code in context.codes):
            i = next(i for i, code in enumerate(context.codes) if code != 200)
            raise ValueError(f"the model answers an example with {context.codes[i]}: {bytes(bodies[i])[:200].decode()}")
        decode_ms, inference_ms = (float(context.sent[0].get(name, 0)) for name in ("x-decode-ms", "x-inference-ms"))
        times.append({"total_ms": total_ms, "decode_ms": decode_ms, "inference_ms": inference_ms})
        turn += 1
    return times[WARM_UPS:]


def main(job: dict[str, Any]) -> None:
    """Time every batch size of the job. The handler starts anew for each, as after a registration with that size."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the handler prints is no answer
    handle, manifest = load(job["model_dir"])
    bodies = [(Path(body["path"]).read_bytes(), body["content_type"]) for body in job["bodies"]]
    for n in job["batch_sizes"]:
        rows = [[{"body": bodies[(turn + i) % len(bodies)][0]} for i in range(n)] for turn in range(len(bodies))]
        headers = [{"content-type": bodies[i % len(bodies)][1]} for i in range(n)]
        context = Context(manifest, job["model_dir"], n, headers)
        handle(None, context)
        context.codes = [200] * n
        answers.write(json.dumps({"n": n, "times": time_batches(handle, context, rows, job["seconds"])}) + "\n")
        answers.flush()


if __name__ == "__main__":
    try:
        main(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    except Exception as error:
        import traceback

        traceback.print_exc()
        sys.stderr.write(f"\n{type(error).__name__}: {error}\n")
        sys.exit(1)
