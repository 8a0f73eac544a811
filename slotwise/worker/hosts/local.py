"""Answer batches in a process without any server: for notebooks, tests and timing.

    python -P -m slotwise.worker.hosts.local       in the extracted archive, its folder first on PYTHONPATH

The process reads messages from its standard input, and answers each with one message on its standard output. A message is a
line of JSON and the bytes whose number stands in that line. Nothing else crosses, so neither side runs code of the other.

    {"start": {"batch_size": 8}}                         -> {"started": {"model": ..., "engine": ...}}
    {"requests": [{"headers": {}, "query": {}, "bytes": 5}, ...]}
                                  -> {"answers": [{"status": 200, ..., "bytes": 9}, ...], "times": [...], "metrics": [...],
                                      "dead": false}

With "n" and "seconds" the requests are answered n at a time, again and again for so many seconds. "times" has the milliseconds
of every batch, and "answers" has the answers of the last batch.

`Answerer` is what every host without a server's context asks: this process, Ray's replicas through it, and Triton's backend.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from slotwise.worker.answer import Answer
from slotwise.worker.request import Headers, Request


class Answered(Protocol):
    """One answered batch. Times in milliseconds."""

    answers: list[Answer]
    total_ms: float
    decode_ms: float
    inference_ms: float


class Answerer(Protocol):
    """What a host without a server's context asks: an archive's handler, or the guard around a stranger's."""

    @property
    def started(self) -> dict[str, Any]:
        """What it runs on, as JSON."""

    @property
    def dead(self) -> bool:
        """Whether it answers no other batch: end the process."""

    def run(self, requests: Sequence[Request]) -> Answered:
        """Answer one batch of requests whose bodies nobody has looked at: exactly one answer each, in order."""

    def between(self) -> None:
        """To be called between two batches, once the answers are on their way."""

    def take_metrics(self) -> list[list[Any]]:
        """The numbers since the last call: name, value, unit ("ms", "%" or "", a count), HTTP status or None."""


def answerer(model_dir: Path, batch_size: int) -> Answerer:
    """Start the handler of the extracted archive, whose folder is first on sys.path. batch_size: the most requests at once.

    Raises ValueError where its `handle` is no entry point that can do without a server; and whatever starting it raises.
    """
    manifest = json.loads((model_dir / "MAR-INF" / "MANIFEST.json").read_text("utf-8"))
    module, _, name = manifest["model"]["handler"].partition(":")
    handle = getattr(importlib.import_module(module.removesuffix(".py")), name or "handle", None)
    entry: Any = getattr(handle, "__self__", None)
    if not hasattr(entry, "without_server"):
        raise ValueError(f"{module} has no `handle = ....entry_point()`: only a server can run it")
    started: Answerer = entry.without_server(model_dir, batch_size)
    return started


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
    target.writelines([json.dumps(message).encode() + b"\n", *bodies])
    target.flush()


def _requests(entries: list[dict[str, Any]], bodies: list[bytes]) -> list[Request]:
    requests = []
    for i, (entry, body) in enumerate(zip(entries, bodies, strict=True)):
        headers = Headers(entry.get("headers"))
        identity = headers.get("x-request-id") or f"local-{i}"
        requests.append(Request(body, headers, identity, query=entry.get("query") or {}))
    return requests


def _timed(local: Answerer, requests: list[Request], n: int, seconds: float) -> tuple[Answered, list[dict[str, float]]]:
    """Answer n requests at a time, once or for so many seconds. Returns the last batch, and the times of each in ms."""
    stop_at = time.perf_counter() + seconds
    times = []
    turn = 0
    while True:
        batch = local.run([requests[(turn + i) % len(requests)] for i in range(n)])
        times.append({"total_ms": batch.total_ms, "decode_ms": batch.decode_ms, "inference_ms": batch.inference_ms})
        turn += 1
        refused = any(answer.status != 200 for answer in batch.answers)
        if time.perf_counter() >= stop_at or (refused and seconds):
            return batch, times


def _reply(local: Answerer, message: dict[str, Any], bodies: list[bytes], target: BinaryIO) -> None:
    requests = _requests(message["requests"], bodies)
    batch, times = _timed(local, requests, int(message.get("n", len(requests))), float(message.get("seconds", 0.0)))
    answers = [
        {"status": a.status, "content_type": a.content_type, "headers": a.headers, "bytes": len(a.body)} for a in batch.answers
    ]
    reply = {"answers": answers, "times": times, "metrics": local.take_metrics(), "dead": local.dead}
    write_message(target, reply, [answer.body for answer in batch.answers])
    local.between()


def main() -> None:
    """Answer messages until there are no more. A message that cannot be answered is answered with {"error": ...}."""
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the handler prints goes to standard error, not among the answers
    local: Answerer | None = None
    while (read := read_message(source, "requests")) is not None:
        message, bodies = read
        try:
            if "start" in message:
                local = answerer(Path.cwd(), int(message["start"]["batch_size"]))
                write_message(target, {"started": local.started})
            elif local is None:
                write_message(target, {"error": "not started"})
            else:
                _reply(local, message, bodies, target)
        except Exception as error:
            write_message(target, {"error": f"{type(error).__name__}: {error}"})
        if local is not None and local.dead:
            return


if __name__ == "__main__":
    main()
