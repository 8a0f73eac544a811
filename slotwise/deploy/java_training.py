"""Make Java's cache (slotwise.server.java.cache): run a server of its own under load once, in the background.

    python -m slotwise.deploy.java_training torchserve

It serves a handler that does nothing, on free ports of loopback, below the caches' private folder. So nothing of anybody's
models, requests, tokens or environment can be in a cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from slotwise.client.inference import InferenceClient
from slotwise.client.management import ManagementClient
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.java import cache as java_cache
from slotwise.server.java.runtime import java_home
from slotwise.server.lifecycle import Kind, ServerRecord, start, stop
from slotwise.server.processes import start_time

# What the training gets of our environment: all that finds programs, folders and a locale.
KEPT = {"PATH", "HOME", "XDG_CACHE_HOME", "JAVA_HOME", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "VIRTUAL_ENV"}
REQUESTS = 3000
BODIES = (b"{}", b'"%s"' % (b" " * 150_000))  # as small as a word and as large as a photo: Java does not treat them alike
CLIENTS = 4
WRITING_S = 300.0  # for Java to write the cache when it ends; seconds where nothing else runs
HANDLER = """\
def handle(data, context):
    return ["{}"] * len(data) if data else []
"""
MODEL = "training"
PROCESS = "java-training.pid"
ENDING_S = 60.0


def train_in_background(kind: str, state: Path) -> bool:
    """Make the cache where it is missing and can be made, with the lowest priority; whether that has begun. Never fails.

    state: the server's folder, where `end_training` finds the process.
    """
    with contextlib.suppress(Exception):  # a server runs without it, too
        file = java_cache.wanted(kind, java_home())
        if file is None or _is_locked(file):
            return False
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "slotwise.deploy.java_training", kind],
            cwd=file.parent,
            env={key: value for key, value in os.environ.items() if key in KEPT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        (state / PROCESS).write_text(f"{process.pid} {start_time(process.pid)}", "utf-8")
        return True
    return False


def end_training(state: Path) -> None:
    """End the training that this server's start has begun, where it still runs, and wait until its own server has ended."""
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        pid, started = (state / PROCESS).read_text("utf-8").split()
        (state / PROCESS).unlink()
        if str(start_time(int(pid))) == started:
            process = psutil.Process(int(pid))
            process.terminate()
            process.wait(ENDING_S)


def train(kind: Kind) -> Path | None:
    """Make the cache, and delete those that nobody uses; returns its file, None where it is there or somebody makes it."""
    home = java_home()
    file = java_cache.wanted(kind, home)
    if file is None:
        return None
    with _lock(file) as locked:
        if not locked:
            return None
        for left in file.parent.glob(f"training-{kind}-*"):  # by one that was killed
            shutil.rmtree(left, ignore_errors=True)
        try:
            with tempfile.TemporaryDirectory(prefix=f"training-{kind}-", dir=file.parent) as work:
                cache = _make(kind, Path(work))
                cache.chmod(0o600)
                cache.replace(file)
        except Exception:
            java_cache.remember_failure(file)
            raise
    java_cache.delete_unused()
    return file


def _make(kind: Kind, work: Path) -> Path:
    os.environ["SLOTWISE_HOME"] = str(work)
    cache, store = work / "java.aot", work / "store"
    store.mkdir()
    with zipfile.ZipFile(store / f"{MODEL}.mar", "w") as archive:
        model = {"modelName": MODEL, "modelVersion": "1.0", "handler": "idle.py" if kind == "torchserve" else "idle:handle"}
        archive.writestr("idle.py", HANDLER)
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"runtime": "python", "model": model}))
    record = start(
        MODEL,
        kind,
        load_profile("cpu", {}, {}),
        model_store=store,
        ports=Ports.free(),
        models={},
        java_options=[f"-XX:AOTCacheOutput={cache}"],
    )
    try:
        _use(record)
        os.kill(record.pid, signal.SIGTERM)  # it writes the cache while it ends
        deadline = time.monotonic() + WRITING_S
        while record.alive() and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        stop(record)
    return cache


def _use(record: ServerRecord) -> None:
    """All that a server does in its first minutes: register, answer, describe, unregister."""
    with ManagementClient(record) as management, InferenceClient(record) as inference:
        batch_size = 4 if record.kind == "torchserve" else 1  # MMS misreads batches of handlers that are none of ours
        management.register(f"{MODEL}.mar", batch_size=batch_size, max_batch_delay=1, initial_workers=1, response_timeout=60)
        management.wait_ready(MODEL)
        with ThreadPoolExecutor(CLIENTS) as pool:
            statuses = set(pool.map(lambda i: inference.predict(MODEL, BODIES[i % len(BODIES)]).status_code, range(REQUESTS)))
        if statuses != {200}:
            raise RuntimeError(f"the training's requests got {statuses}")
        management.describe(MODEL)
        management.unregister(MODEL)


@contextlib.contextmanager
def _lock(file: Path) -> Iterator[bool]:
    """Hold the lock of making a cache, which ends with the process; gives whether it was free."""
    with file.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _is_locked(file: Path) -> bool:
    with _lock(file) as was_free:
        return not was_free


if __name__ == "__main__":
    os.nice(19)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # its server has to be stopped
    os.umask(0o077)
    train(sys.argv[1])  # type: ignore[arg-type]
