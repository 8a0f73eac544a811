"""Start a handler in an extracted archive: every host does it the same way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from slotwise.worker import digests
from slotwise.worker.handler import BatchHandler
from slotwise.worker.pipeline import Pipeline
from slotwise.worker.settings import Settings, pin_gpu


def start(
    handler: BatchHandler,
    model_dir: Path,
    batch_size: int,
    gpu_id: int | None = None,
    verified: Callable[[], None] = lambda: None,
) -> Pipeline:
    """Verify the archive, read its settings, load the engine and run it at every size that will be served.

    verified(): what a host does once the archive is known to be what was built.
    """
    digests.verify(model_dir)
    verified()
    if gpu_id is not None:
        pin_gpu(gpu_id)
    settings = Settings.load(model_dir, os.environ, gpu_id, batch_size)
    settings.limit_threads()
    return Pipeline.start(handler, model_dir, settings)
