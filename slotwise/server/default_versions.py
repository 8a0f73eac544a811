"""Which version of each model is the default one: a host of ours notes it at each change, and who starts it again reads it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slotwise.files.disk import write_together

if TYPE_CHECKING:
    from slotwise.server.record import ServerRecord

log = logging.getLogger(__name__)

FILE = "defaults.json"


def note(record: ServerRecord, versions: Mapping[str, str]) -> None:
    """Keep each model's default version. A full disk costs no change: it is in the log."""
    try:
        write_together({record.state_dir / FILE: json.dumps({"run": record.run_id, "versions": dict(versions)})})
    except OSError as error:
        log.error("the default versions cannot be kept: %s", error.strerror)


def noted(record: ServerRecord) -> dict[str, str]:
    """Each model's default version, as this run of the server last noted it; nothing where it has not."""
    try:
        kept = json.loads((record.state_dir / FILE).read_text("utf-8"))
        return dict(kept["versions"]) if kept["run"] == record.run_id else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
