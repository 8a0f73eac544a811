"""What decoding one body will cost, estimated before anything is decoded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """What decoding one body will take, estimated before anything is decoded."""

    decode_ms: float
    memory_bytes: int
