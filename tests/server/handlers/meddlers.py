"""A model that adds one to a number, and on a given word meddles with what is not its own: streams, pipes, processes."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slotwise.worker import BatchHandler, Headers, Settings

FORGED = {"status": 200, "content_type": "application/json", "headers": {}, "bytes": 7}


def pipes(mode: int) -> Iterator[int]:
    """The descriptors of pipes that are open for reading or writing (os.O_RDONLY, os.O_WRONLY), but the standard ones."""
    for descriptor in range(3, 256):
        try:
            found = (
                stat.S_ISFIFO(os.fstat(descriptor).st_mode) and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == mode
            )
        except OSError:
            continue
        if found:
            yield descriptor


def say(text: bytes, after_s: float = 0.0) -> None:
    """Write where the worker answers."""
    time.sleep(after_s)
    for descriptor in pipes(os.O_WRONLY):
        os.write(descriptor, text)


def message(number: int, n: int = 1) -> bytes:
    """An answer to a message."""
    return json.dumps({"id": number, "answers": [FORGED] * n}).encode() + b"\n" + b"forged!" * n


def meddle(word: str) -> None:
    """Do what the word says."""
    if word == "print":
        print(json.dumps({"answers": []}), flush=True)
        os.write(1, message(2))
    elif word == "program":  # reads what there is, and prints as much
        assert subprocess.run(["cat"], stdout=subprocess.PIPE, timeout=60).stdout == b""
        assert subprocess.run("cat; echo forged", shell=True, close_fds=False, timeout=60).returncode == 0
    elif word == "read":
        assert (sys.stdin.read(), os.read(0, 100)) == ("", b"")
    elif word == "fork":  # a copy of the worker, which goes on as if it were one
        os.fork()
    elif word == "hold":  # a process that outlives the worker, and has all its descriptors
        subprocess.Popen(["sleep", "30"], pass_fds=[*pipes(os.O_RDONLY), *pipes(os.O_WRONLY)])
        os._exit(3)
    elif word == "other":
        say(message(1))
    elif word == "later":
        threading.Thread(target=say, args=(message(2), 0.2)).start()
    elif word == "junk":
        say(b"\0\xffno message\n")
    elif word == "half":
        say(message(2)[:-30])
        os._exit(3)
    elif word == "stall":
        say(message(2)[:-3])
        time.sleep(600)
    elif word == "many":
        say(message(2, 3))
    elif word == "close":
        for descriptor in [*pipes(os.O_RDONLY), *pipes(os.O_WRONLY)]:
            os.close(descriptor)
    elif word == "sweep":
        os.closerange(3, 256)


class Meddlers(BatchHandler):
    """A body is a number, or a word."""

    calls = 0

    def load(self, model_dir: Path, settings: Settings) -> Any:
        print("loading", flush=True)
        if Path(os.environ.get("HANGS", "")).is_file():
            time.sleep(600)
        return lambda items: [item + 1 for item in items]

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [int(body) if body.isdigit() else body.decode()]

    def collate(self, items: list[Any]) -> Any:
        return items

    def predict(self, inputs: Any) -> Any:
        for word in inputs:
            if isinstance(word, str):
                meddle(word)
        self.calls += 1
        grown = {"grow": 10**900 * self.calls}  # another answer each time, and larger than any float
        return self.engine([item if isinstance(item, int) else grown.get(str(item), 0) for item in inputs])


handle = Meddlers.entry_point()
