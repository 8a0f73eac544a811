"""What happens between two batches: a worker has written its last answer, and has not yet read the next message."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def _protocol(package: str) -> Any:
    """The server's module that reads messages; None in a process that is no worker of that server."""
    protocol: Any = sys.modules.get(f"{package}.protocol.otf_message_handler")
    return protocol if hasattr(protocol, "_retrieve_buffer") else None


def before_every_read(package: str, action: Callable[[], None]) -> bool:
    """Have `action` called before anything is read from the server, so also between two batches; whether that can be done."""
    protocol = _protocol(package)
    if protocol is None:
        return False
    plain = protocol._retrieve_buffer

    @functools.wraps(plain)
    def retrieve(conn: Any, length: int) -> Any:
        action()
        return plain(conn, length)

    protocol._retrieve_buffer = retrieve
    return True


def end_after_this_answer(package: str) -> None:
    """End the worker instead of reading the next message: the server starts a new one.

    A worker reads its next message only when it has written the last answer. So the batch in hand is answered, however long
    that takes, and no other batch is accepted.
    """
    protocol = _protocol(package)
    if protocol is None:
        logger.error("this worker cannot end itself: %s has no such protocol", package)
        return

    def end(conn: Any, length: int) -> Any:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    protocol._retrieve_buffer = end
