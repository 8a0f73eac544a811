"""Answer batches in a process without any server: for Ray, Triton, notebooks, tests and timing.

    python -P -m slotwise.worker.hosts.local SOURCE TARGET      in the extracted archive, its folder first on PYTHONPATH

The process reads messages (messages.py) from the descriptor SOURCE and answers each with exactly one message on TARGET. Both
are its own: a handler's standard input is empty, and what it or its programs print goes to standard error.

`Answerer` is what every host without a server's context asks: this process, Ray's replicas through it, and Triton's backend.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from slotwise.worker.answer import Answer
from slotwise.worker.hosts.messages import VERSION, BrokenMessage, Message, encoded, read_message
from slotwise.worker.request import Headers, Request
from slotwise.worker.slot_errors import text

logger = logging.getLogger(__name__)


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


def entry_of(model_dir: Path) -> tuple[str, Any]:
    """The extracted archive's handler: its module, and the object whose method its `handle` is; None where it is nobody's."""
    manifest = json.loads((model_dir / "MAR-INF" / "MANIFEST.json").read_text("utf-8"))
    module, _, name = manifest["model"]["handler"].partition(":")
    handle = getattr(importlib.import_module(module.removesuffix(".py")), name or "handle", None)
    return module, getattr(handle, "__self__", None)


def answerer(model_dir: Path, batch_size: int) -> Answerer:
    """Start the handler of the extracted archive, whose folder is first on sys.path. batch_size: the most requests at once.

    Raises ValueError where its `handle` is no entry point that can do without a server; and whatever starting it raises.
    """
    module, entry = entry_of(model_dir)
    if not hasattr(entry, "without_server"):
        raise ValueError(f"{module} has no `handle = ....entry_point()`: only a server can run it")
    started: Answerer = entry.without_server(model_dir, batch_size)
    return started


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


class LocalHost:
    """Answers messages one after the other, with the handler that the first one started."""

    def __init__(self) -> None:
        self.local: Answerer | None = None

    def serve(self, source: BinaryIO, target: BinaryIO) -> None:
        """Answer messages until there are no more, or the engine is dead: one message for each, whatever happens."""
        while (message := read_message(source, "requests")) is not None:
            target.write(self.answer(message))
            target.flush()
            if self.local is not None:
                if self.local.dead:
                    return
                self._between(self.local)

    def answer(self, message: Message) -> bytes:
        """The one answer to a message, with its id. One that cannot be answered is answered with {"error": ...}."""
        try:
            head, bodies = self._start(message) if "start" in message.head else self._batch(message)
            return encoded({"id": message.id, **head}, bodies)
        except BrokenMessage:
            raise
        except Exception as error:
            logger.warning("message %d cannot be answered", message.id, exc_info=True)
            return encoded({"id": message.id, "error": f"{type(error).__name__}: {text(error)}"})

    def _start(self, message: Message) -> tuple[Mapping[str, Any], Sequence[bytes]]:
        if message.head.get("version") != VERSION:
            raise ValueError(f"this worker speaks version {VERSION} of the messages, its host {message.head.get('version')}")
        self.local = answerer(Path.cwd(), int(message.head["start"]["batch_size"]))
        return {"version": VERSION, "started": self.local.started}, ()

    def _batch(self, message: Message) -> tuple[Mapping[str, Any], Sequence[bytes]]:
        local = self.local
        if local is None:
            raise ValueError("not started")
        requests = _requests(message.head["requests"], message.bodies)
        n, seconds = int(message.head.get("n", len(requests))), float(message.head.get("seconds", 0.0))
        batch, times = _timed(local, requests, n, seconds)
        answers = [
            {"status": a.status, "content_type": a.content_type, "headers": dict(a.headers), "bytes": len(a.body)}
            for a in batch.answers
        ]
        head = {"answers": answers, "times": times, "metrics": local.take_metrics(), "dead": local.dead}
        return head, [answer.body for answer in batch.answers]

    def _between(self, local: Answerer) -> None:
        try:
            local.between()
        except Exception:  # the answers are on their way: nothing may come behind them
            logger.exception("what is done between two batches failed")


def keep_from_others(*descriptors: int) -> None:
    """Leave these descriptors to this process alone: no program that a handler starts has them, and no fork of it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
        os.register_at_fork(after_in_child=functools.partial(os.dup2, nothing, descriptor, inheritable=False))


def own_streams(source: int, target: int) -> tuple[BinaryIO, BinaryIO]:
    """The two descriptors as streams that nobody else has."""
    keep_from_others(source, target)
    return os.fdopen(source, "rb"), os.fdopen(target, "wb")


def main() -> None:
    """Answer what comes on the two descriptors that the host named."""
    if len(sys.argv) != 3:  # a host of 0.2.0: it reads one answer from standard output
        sys.stdout.write('{"error": "this archive is of a later release of slotwise: upgrade the one that loads it"}\n')
        return
    source, target = own_streams(int(sys.argv[1]), int(sys.argv[2]))
    try:
        LocalHost().serve(source, target)
    except BrokenMessage as error:  # the host is gone, or confused: nothing that comes after it can be trusted
        sys.exit(f"the worker ends: {error}")
    except BrokenPipeError:
        sys.exit("the worker ends: its host has gone")


if __name__ == "__main__":
    main()
