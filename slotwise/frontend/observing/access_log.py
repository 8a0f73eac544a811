"""The access log: one line for each request that was answered or refused, in the common log format or as JSON.

It has no body, no header but the request's id, no key but its name, and of a path only what is known here.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Literal, TextIO

from slotwise.frontend.observing.seen_request import SeenRequest
from slotwise.log_format import iso

AccessFormat = Literal["common", "json"]


def common_line(seen: SeenRequest) -> str:
    """The common log format; behind it milliseconds, the request's id, its trace's, and in quotes why it failed."""
    date = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(seen.came))
    trace = seen.trace_word or "-"
    return (
        f'{seen.address or "-"} - {seen.key or "-"} [{date}] "{seen.method} {seen.path} {seen.protocol}" {seen.status}'
        f' {seen.bytes_out or "-"} {1000 * seen.seconds:.1f} {seen.identity or "-"} {trace} "{seen.reason or "-"}"'
    )


def json_line(seen: SeenRequest) -> str:
    """One object."""
    about = {
        "time": iso(seen.came),
        "logger": "access",
        "address": seen.address,
        "key": seen.key,
        "method": seen.method,
        "path": seen.path,
        "protocol": seen.protocol,
        "model": seen.model,
        "version": seen.version,
        "status": seen.status,
        "bytes_in": seen.bytes_in,
        "bytes_out": seen.bytes_out,
        "ms": round(1000 * seen.seconds, 3),
        "request_id": seen.identity,
        "trace_id": seen.trace_word,
        "sent": seen.sent,
        "reason": seen.reason,
    }
    return json.dumps({name: value for name, value in about.items() if value != ""})


class AccessLog:
    """Writes a line for each request, to standard error unless told otherwise."""

    def __init__(self, form: AccessFormat, stream: TextIO | None = None) -> None:
        self._line = json_line if form == "json" else common_line
        self._stream = stream or sys.stderr

    def keeps(self, seen: SeenRequest) -> bool:
        """Each has its line."""
        return True

    def ended(self, seen: SeenRequest) -> None:
        """One more; where nobody reads it any more it is dropped."""
        try:
            self._stream.write(f"{self._line(seen)}\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass
