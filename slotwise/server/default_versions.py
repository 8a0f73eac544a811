"""Which models are registered, and how: a host of ours notes it at each change, and who starts it again reads it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slotwise.files.disk import write_together

if TYPE_CHECKING:
    from slotwise.backends.management.models import HostedModel
    from slotwise.server.record import ServerRecord

log = logging.getLogger(__name__)

FILE = "defaults.json"


def note(record: ServerRecord, models: Iterable[HostedModel]) -> None:
    """Keep every version of every model, of each the default one first. A full disk costs no change: it is in the log."""
    file = record.state_dir / FILE
    try:
        write_together({file: json.dumps({"run": record.run_id, "models": [_described(model) for model in models]})})
    except OSError as error:
        log.error("the models cannot be noted: %s", error.strerror)
        with suppress(OSError):
            file.unlink(missing_ok=True)  # what was so before is not so any more


def noted(record: ServerRecord) -> list[dict[str, Any]] | None:
    """Every version as `live_model` reads it, as this run of the server last noted them; None where it has not."""
    try:
        kept = json.loads((record.state_dir / FILE).read_text("utf-8"))
        return list(kept["models"]) if kept["run"] == record.run_id else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _described(model: HostedModel) -> dict[str, Any]:
    return {
        "modelName": model.name,
        "modelVersion": model.version,
        "modelUrl": model.archive,
        "batchSize": model.batch_size,
        "maxBatchDelay": model.max_batch_delay_ms,
        "minWorkers": model.min_workers,
        "maxWorkers": model.max_workers,
        "responseTimeout": model.response_timeout_s,
        "workers": [{}] * model.min_workers,
    }
