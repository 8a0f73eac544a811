"""How long a batch waits for more requests, as each server counts it."""

from __future__ import annotations

from slotwise.errors import SlotwiseError

WHOLE_MS = ("torchserve", "mms")  # these count max_batch_delay in whole milliseconds


def whole_as_int(delay_ms: float) -> float:
    """The same number, an int where it is whole, because some servers read nothing else."""
    return int(delay_ms) if delay_ms == int(delay_ms) else delay_ms


def check_delay(kind: str, max_batch_delay_ms: float) -> None:
    """Raise SlotwiseError for a fraction of a millisecond where a server of this kind has none."""
    if kind in WHOLE_MS and max_batch_delay_ms != int(max_batch_delay_ms):
        raise SlotwiseError(
            f"{kind} counts max_batch_delay_ms in whole milliseconds, not {max_batch_delay_ms}",
            "0 waits for nobody; Ray, Triton and our own host take fractions",
        )
