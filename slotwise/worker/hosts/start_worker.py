"""Start a handler in an extracted archive, as every host does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from slotwise.worker.environment import digests
from slotwise.worker.environment.settings import Settings, pin_gpu
from slotwise.worker.handler import BatchHandler
from slotwise.worker.pipeline import Pipeline


def start(
    handler: BatchHandler,
    model_dir: Path,
    batch_size: int,
    gpu_id: int | None = None,
    when_verified: Callable[[], None] = lambda: None,
) -> Pipeline:
    """Verify the archive, read its settings, load the engine and run it at every size that will be served.

    gpu_id: the GPU that the server assigned to this worker, or None. when_verified(): called once the archive is known to be
    what was built, before the engine is loaded.
    """
    digests.verify(model_dir)
    when_verified()
    if gpu_id is not None:
        pin_gpu(gpu_id)
    settings = Settings.load(model_dir, os.environ, gpu_id, batch_size)
    settings.limit_threads()
    return Pipeline.start(handler, model_dir, settings)
