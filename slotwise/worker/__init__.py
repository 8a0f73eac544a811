"""Everything that runs inside a server's worker. It is copied into every archive, and imports nothing else of slotwise."""

from slotwise.worker.answer import Answer
from slotwise.worker.batch import Batch
from slotwise.worker.budget import Cost
from slotwise.worker.environment.settings import Settings
from slotwise.worker.familiar.torchserve_handler import TorchServeHandler
from slotwise.worker.handler import BatchHandler
from slotwise.worker.hosts.java.entry_point import EntryPoint
from slotwise.worker.inputs.own_handlers import decode_picture, decode_rows
from slotwise.worker.inputs.plain_text import decode_text
from slotwise.worker.pipeline import Pipeline
from slotwise.worker.request import Headers, Request
from slotwise.worker.slot_errors import (
    BadRequest,
    DeadlineExceeded,
    ModelFault,
    NotOffered,
    OutOfMemory,
    SlotError,
    TooLarge,
    Unavailable,
    Unprocessable,
    UnsupportedMedia,
)
from slotwise.worker.stages.stage_chain import StagePart
from slotwise.worker.steps.sampling import greedy, sampled
from slotwise.worker.steps.step_engine import End, Next, StepEngine, StepRow, StepState
from slotwise.worker.streaming.stream_handler import StreamHandler

BatchHandler._host = EntryPoint

__all__ = [
    "Answer",
    "BadRequest",
    "Batch",
    "BatchHandler",
    "Cost",
    "DeadlineExceeded",
    "End",
    "Headers",
    "ModelFault",
    "Next",
    "NotOffered",
    "OutOfMemory",
    "Pipeline",
    "Request",
    "Settings",
    "SlotError",
    "StagePart",
    "StepEngine",
    "StepRow",
    "StepState",
    "StreamHandler",
    "TooLarge",
    "TorchServeHandler",
    "Unavailable",
    "Unprocessable",
    "UnsupportedMedia",
    "decode_picture",
    "decode_rows",
    "decode_text",
    "greedy",
    "sampled",
]
