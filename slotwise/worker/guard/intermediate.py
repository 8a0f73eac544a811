"""What theirs send before their answer is whole: TorchServe's `send_intermediate_predict_response`, taken by the guard.

A piece belongs to the request that `handle` was called for, and is sent from the thread that `handle` runs in. From anywhere
else nobody could say whose piece it is: it is dropped, and the request that runs fails.

TorchServe's call raises nothing where a client has gone. Theirs may count on that: what it clears only at its own end, the next
request would find. So ours raises nothing at all. Why a piece was not sent is said once theirs has returned.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from slotwise.worker.slot_errors import ModelFault, SlotError, known_status

logger = logging.getLogger(__name__)

SEND = "send_intermediate_predict_response"
MODULES = ("ts.handler_utils.utils", "ts.protocol.otf_message_handler")
NOT_NOW = "the handler sent a piece of an answer outside of the call of `handle` that it is for"

Take = Callable[[Any], None]  # gets what theirs sends of the one request


class Gone(Exception):
    """Nobody waits for the answer any more."""


class Intermediate:
    """One request's pieces at a time. fault: why the request that runs fails, whatever theirs makes of it."""

    def __init__(self) -> None:
        self.identity: Any = None
        self.thread = 0
        self.take: Take | None = None
        self.fault: SlotError | None = None

    def install(self) -> None:
        """Put ours in the place of TorchServe's; to be called before theirs is imported, which may import the name."""
        for module in MODULES:
            with suppress(ImportError):  # no TorchServe: theirs cannot import it either
                setattr(importlib.import_module(module), SEND, self.send)

    @contextmanager
    def taken(self, identity: Any, take: Take) -> Iterator[None]:
        """Within, what theirs sends is the request's of this id. Raises SlotError at the end where a piece was not sent."""
        self.identity, self.thread, self.take, self.fault = identity, threading.get_ident(), take, None
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException:  # what theirs failed on after a piece was not sent is no news
            if self.fault is None:
                raise
        finally:
            self.take = None
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault

    def send(self, ret: Any, req_id_map: Any, message: str = "", code: int = 200, context: Any = None) -> None:
        """What theirs calls. Of a request that fails, and of one that nobody waits for, pieces are dropped."""
        take = self.take
        if os.environ.get("LOCAL_RANK", "0") != "0":
            return
        if take is None:
            logger.warning(NOT_NOW)
            return
        if self.fault is not None:
            return
        try:
            if threading.get_ident() != self.thread or dict(req_id_map) != {0: self.identity}:
                raise ModelFault(NOT_NOW)
            if code != 200:
                raise _failed(code, message)
            take(ret[0])
        except Gone:
            return
        except KeyboardInterrupt:
            raise
        except SlotError as error:
            self.fault = error
        except BaseException as error:  # an object of theirs may do anything
            self.fault = ModelFault("a piece of the answer could not be sent")
            self.fault.__cause__ = error


def _failed(code: Any, message: Any) -> SlotError:
    """What theirs says with this code, which is not 200: TorchServe ends the request with it."""
    error = SlotError(message or f"the handler sent a piece with the status {code}")
    error.code = known_status(code)
    return error
