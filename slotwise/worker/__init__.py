"""Everything that runs inside the server's worker; copied into every archive, imports nothing else of slotwise."""

from slotwise.worker.batch import Batch, Request
from slotwise.worker.errors import (
    BadRequest,
    DeadlineExceeded,
    ModelFault,
    OutOfMemory,
    SlotError,
    TooLarge,
    Unavailable,
    Unprocessable,
    UnsupportedMedia,
)
from slotwise.worker.handler import BatchHandler
from slotwise.worker.hosts.context import Headers
from slotwise.worker.settings import Settings

__all__ = [
    "BadRequest",
    "Batch",
    "BatchHandler",
    "DeadlineExceeded",
    "Headers",
    "ModelFault",
    "OutOfMemory",
    "Request",
    "Settings",
    "SlotError",
    "TooLarge",
    "Unavailable",
    "Unprocessable",
    "UnsupportedMedia",
]
