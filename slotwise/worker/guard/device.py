"""The device that a stranger's handler computes on: whether it still does, and how to free what a failed call holds."""

from __future__ import annotations

import contextlib
import sys
import traceback
from typing import Any

from slotwise.worker.isolation import is_out_of_memory


def device_alive() -> bool:
    """Whether the GPU that this process uses still computes; an assertion in one kernel ends all later ones."""
    torch: Any = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.zeros(1, device="cuda").item()
        return True
    except Exception as error:
        return is_out_of_memory(error)


def let_go(error: BaseException | None) -> None:
    """Empty the frames that an error keeps: they hold what theirs had in memory when the next attempt needs it."""
    for _ in range(10):
        if error is None:
            return
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def release() -> None:
    """Give back what a failed call has left in torch's cache of GPU memory. On a dead device nothing can be given back."""
    torch: Any = sys.modules.get("torch")
    with contextlib.suppress(Exception):  # device_alive finds out
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
