"""Decode fields for a stranger's handler as its server does, and so that a body that is no JSON costs only its sender.

Both servers parse JSON and decode text before a handler sees them, while they read the message. What cannot be decoded
TorchServe hands on as it came; MMS's worker ends there, and with it the batch. Here it becomes an `Unreadable` instead, for the
guard to refuse. A server that `slotwise serve` started decodes nothing, for that very reason: there it is done for the guard.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
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

    parses = os.environ.get("MMS_DECODE_INPUT_REQUEST", "true") == "true"

    def field(conn: Any) -> dict[str, Any] | None:
        length = protocol._retrieve_int(conn)
        if length == -1:
            return None
        name, content_type, value = (
            protocol._retrieve_buffer(conn, length if i == 0 else protocol._retrieve_int(conn)) for i in range(3)
        )
        kind = content_type.decode("utf-8", "replace")
        return {
            "name": name.decode("utf-8", "replace"),
            "contentType": kind,
            "value": decoded(value, kind) if parses else value,
        }

    protocol._retrieve_input_data = field
    return True


def decoded(value: Any, content_type: str, server: str = "mms") -> Any:
    """The value as the server decodes it. What cannot be decoded stays what it is on TorchServe, and is Unreadable on MMS.

    TorchServe looks at what stands before the parameters of a content type, such as a charset, and reads UTF-8 in any case.
    """
    if server == "torchserve":
        content_type = content_type.partition(";")[0]
    try:
        if content_type == "application/json":
            return json.loads(value.decode("utf-8"))
        return value.decode("utf-8") if content_type.startswith("text") else value
    except (ValueError, RecursionError):
        logger.warning("a body is not what its content type says: %.100a", content_type)
        return value if server == "torchserve" else Unreadable()


def row(fields: Mapping[str, Any], headers: Mapping[str, Any], server: str) -> dict[str, Any]:
    """One request's fields decoded. headers: they have every field's own content type under its name."""
    types = {name: headers.get(name) for name in fields}
    return {
        name: decoded(value, str(kind.get("content-type", "")), server)
        if isinstance(kind := types[name], dict) and isinstance(value, bytes | bytearray)
        else value
        for name, value in fields.items()
    }


def left_to_us(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this server decodes nothing because `slotwise serve` said so, and not because its operator wants it."""
    switches = (environ.get(f"{name}_DECODE_INPUT_REQUEST") for name in ("TS", "MMS"))
    return "SLOTWISE_WORKER" in environ and "false" in switches
