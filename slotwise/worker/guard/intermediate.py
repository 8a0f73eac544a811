"""What theirs send before their answer is whole: TorchServe's `send_intermediate_predict_response`, taken by the guard.

A piece belongs to the request that `handle` was called for, and is sent from the thread that `handle` runs in. From anywhere
else nobody could say whose piece it is: there the call raises, and the request that runs fails.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from slotwise.worker.slot_errors import ModelFault, SlotError

SEND = "send_intermediate_predict_response"
MODULES = ("ts.handler_utils.utils", "ts.protocol.otf_message_handler")
NOT_NOW = "the handler sent a piece of an answer outside of the call of `handle` that it is for"

Take = Callable[[Any], None]  # gets what theirs sends of the one request


class Intermediate:
    """One request's pieces at a time. fault: why the request that runs fails, whatever theirs makes of it."""

    def __init__(self) -> None:
        self.identity: Any = None
        self.thread = 0
        self.take: Take | None = None
        self.fault: BaseException | None = None

    def install(self) -> None:
        """Put ours in the place of TorchServe's; to be called before theirs is imported, which may import the name."""
        for module in MODULES:
            with suppress(ImportError):  # no TorchServe: theirs cannot import it either
                setattr(importlib.import_module(module), SEND, self.send)

    @contextmanager
    def taken(self, identity: Any, take: Take) -> Iterator[None]:
        """Within, what theirs sends is the request's of this id."""
        self.identity, self.thread, self.take, self.fault = identity, threading.get_ident(), take, None
        try:
            yield
        finally:
            self.take = None

    def send(self, ret: Any, req_id_map: Any, message: str = "", code: int = 200, context: Any = None) -> None:
        """What theirs calls. Raises what `take` raises, and ModelFault where nobody can say whose piece it is."""
        if os.environ.get("LOCAL_RANK", "0") != "0":
            return
        try:
            if self.take is None or threading.get_ident() != self.thread or dict(req_id_map) != {0: self.identity}:
                raise ModelFault(NOT_NOW)
            self.take(ret[0])
        except BaseException as error:  # theirs may catch it: the answer lacks a piece all the same
            self.fault = self.fault or error
            raise

    def raise_fault(self) -> None:
        """Raise why a piece was not sent, where there was one."""
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault if isinstance(fault, SlotError) else ModelFault("a piece of the answer could not be sent") from fault
