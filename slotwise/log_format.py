"""How a process of ours writes its log: as text, or one JSON object a line (`--log-format json`)."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any, Literal

LogFormat = Literal["text", "json"]
VARIABLE, ACCESS_VARIABLE = "SLOTWISE_LOG_FORMAT", "SLOTWISE_ACCESS_LOG"  # for the processes that a command starts
REMEMBER_VARIABLE = "SLOTWISE_REMEMBER"
VARIABLES = (VARIABLE, ACCESS_VARIABLE, REMEMBER_VARIABLE)


def iso(unix_s: float) -> str:
    """2026-01-31T12:00:00.123Z."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(unix_s))}.{int(unix_s % 1 * 1000):03d}Z"


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, process, the `extra={"fields": {...}}` of a call, message, an error's trace."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        about = {
            "time": iso(record.created),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            **fields,
            "message": record.getMessage(),
        }
        if record.exc_info:
            about["error"] = self.formatException(record.exc_info)
        return json.dumps(about)


def set_up(text: str, level: int, wanted: LogFormat | None = None) -> None:
    """Have this process log to standard error. text: the lines' form, unless JSON is wanted, here or by the environment."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if (wanted or from_environment()) == "json" else logging.Formatter(text))
    logging.basicConfig(level=level, handlers=[handler])


def from_environment() -> LogFormat:
    """What the one who started this process wants."""
    return "json" if os.environ.get(VARIABLE) == "json" else "text"


def printed(model: str, worker: str, line: str) -> str:
    """A line that a worker printed, labelled."""
    about = {"time": iso(time.time()), "logger": "worker", "model": model, "worker": worker, "message": line}
    return json.dumps(about)
