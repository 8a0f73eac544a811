"""Answer batches in a process without any server: for notebooks, tests and timing.

    python -P -m slotwise.worker.hosts.local       in the extracted archive, its folder first on PYTHONPATH

The process reads messages from its standard input, and answers each with one message on its standard output. A message is a
line of JSON and the bytes whose number stands in that line. Nothing else crosses, so neither side runs code of the other.

    {"start": {"batch_size": 8}}                         -> {"started": {"model": ..., "engine": ...}}
    {"requests": [{"headers": {}, "bytes": 5}, ...]}     -> {"answers": [{"status": 200, ..., "bytes": 9}, ...], "times": [...]}

With "n" and "seconds" the requests are answered n at a time, again and again for so many seconds. "times" has the milliseconds
of every batch, and "answers" has the answers of the last batch.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from slotwise.worker.answer import Answer
from slotwise.worker.batch import Batch
from slotwise.worker.handler import BatchHandler
from slotwise.worker.hosts.starting import start
from slotwise.worker.request import Headers, Request


class LocalWorker:
    """Answers batches with the handler of the extracted archive in `model_dir`."""

    def __init__(self, handler: BatchHandler, model_dir: Path, batch_size: int = 8) -> None:
        self.handler = handler
        self.pipeline = start(handler, model_dir, batch_size)

    @classmethod
    def of(cls, model_dir: Path, batch_size: int) -> LocalWorker:
        """Import the archive's handler. Raises ValueError where its `handle` is not a BatchHandler's entry point."""
        manifest = json.loads((model_dir / "MAR-INF" / "MANIFEST.json").read_text("utf-8"))
        module, _, name = manifest["model"]["handler"].partition(":")
        handle = getattr(importlib.import_module(module.removesuffix(".py")), name or "handle", None)
        handler = getattr(getattr(handle, "__self__", None), "handler", None)
        if not isinstance(handler, BatchHandler):
            raise ValueError(f"{module} has no `handle = ....entry_point()`: only a server can run it")
        return cls(type(handler)(), model_dir, batch_size)

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """Exactly one answer a request, in order."""
        return self.pipeline.answer(requests)


def read_message(source: BinaryIO, counted: str) -> tuple[dict[str, Any], list[bytes]] | None:
    """Read the next message and the bytes behind it; None at the end.

    counted: the key of the message whose entries have the number of their `bytes`.
    """
    line = source.readline()
    if not line:
        return None
    message: dict[str, Any] = json.loads(line)
    return message, [source.read(entry["bytes"]) for entry in message.get(counted, [])]


def write_message(target: BinaryIO, message: dict[str, Any], bodies: Sequence[bytes] = ()) -> None:
    """Write one message and the bytes behind it."""
    target.write(json.dumps(message).encode() + b"\n" + b"".join(bodies))
    target.flush()


def _requests(entries: list[dict[str, Any]], bodies: list[bytes]) -> list[Request]:
    return [
        Request(body, Headers(entry.get("headers")), str(entry.get("id") or f"local-{i}"), entry.get("deadline_s"))
        for i, (entry, body) in enumerate(zip(entries, bodies, strict=True))
    ]


def _timed(local: LocalWorker, requests: list[Request], n: int, seconds: float) -> tuple[Batch, list[dict[str, float]]]:
    """Answer n requests at a time, once or for so many seconds. Returns the last batch, and the times of each in ms."""
    stop_at = time.perf_counter() + seconds
    times = []
    turn = 0
    while True:
        batch = local.pipeline.run([requests[(turn + i) % len(requests)] for i in range(n)])
        times.append({"total_ms": batch.total_ms, "decode_ms": batch.decode_ms, "inference_ms": batch.inference_ms})
        turn += 1
        refused = any(answer.status != 200 for answer in batch.answers)
        if time.perf_counter() >= stop_at or (refused and seconds):
            return batch, times


def _reply(local: LocalWorker, message: dict[str, Any], bodies: list[bytes], target: BinaryIO) -> None:
    requests = _requests(message["requests"], bodies)
    batch, times = _timed(local, requests, int(message.get("n", len(requests))), float(message.get("seconds", 0.0)))
    answers = [
        {"status": a.status, "content_type": a.content_type, "headers": a.headers, "bytes": len(a.body)} for a in batch.answers
    ]
    write_message(target, {"answers": answers, "times": times}, [answer.body for answer in batch.answers])


def main() -> None:
    """Answer messages until there are no more. A message that cannot be answered is answered with {"error": ...}."""
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the handler prints goes to standard error, not among the answers
    local: LocalWorker | None = None
    while (read := read_message(source, "requests")) is not None:
        message, bodies = read
        try:
            if "start" in message:
                local = LocalWorker.of(Path.cwd(), int(message["start"]["batch_size"]))
                engine = getattr(local.handler.engine, "name", type(local.handler.engine).__name__)
                write_message(target, {"started": {"engine": engine, "profile": local.pipeline.settings.profile}})
            elif local is None:
                write_message(target, {"error": "not started"})
            else:
                _reply(local, message, bodies, target)
        except Exception as error:
            write_message(target, {"error": f"{type(error).__name__}: {error}"})
        if local is not None and local.pipeline.dead:
            return


if __name__ == "__main__":
    main()
