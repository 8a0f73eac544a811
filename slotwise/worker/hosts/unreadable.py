"""A body that is not what its content type says costs only its sender; MMS's own worker ends at one, and with it the batch.

MMS parses JSON and decodes text before a handler sees it, while it reads the message. What cannot be decoded becomes an
`Unreadable` here, for the guard to refuse. (TorchServe hands such bodies on as they came.)
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

logger = logging.getLogger(__name__)

KNOWN = ("_retrieve_int", "_retrieve_buffer", "_retrieve_input_data")


class Unreadable:
    """Stands for a field that could not be decoded."""


def install() -> bool:
    """Replace MMS's reading of one field, between two messages; whether it is replaced afterwards."""
    protocol: Any = sys.modules.get("mms.protocol.otf_message_handler")
    if not all(hasattr(protocol, name) for name in KNOWN):
        return False

    def field(conn: Any) -> dict[str, Any] | None:
        length = protocol._retrieve_int(conn)
        if length == -1:
            return None
        name, content_type, value = (
            protocol._retrieve_buffer(conn, length if i == 0 else protocol._retrieve_int(conn)) for i in range(3)
        )
        kind = content_type.decode("utf-8", "replace")
        return {"name": name.decode("utf-8", "replace"), "contentType": kind, "value": decoded(value, kind)}

    protocol._retrieve_input_data = field
    return True


def decoded(value: Any, content_type: str) -> Any:
    """The value as MMS decodes it, or an Unreadable."""
    if os.environ.get("MMS_DECODE_INPUT_REQUEST", "true") != "true":
        return value
    try:
        if content_type == "application/json":
            return json.loads(value.decode("utf-8"))
        return value.decode("utf-8") if content_type.startswith("text") else value
    except (ValueError, RecursionError):
        logger.warning("a body is not what its content type says: %.100a", content_type)
        return Unreadable()
