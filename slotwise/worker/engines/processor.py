"""What this machine's processor can do in hardware."""

from __future__ import annotations

import hashlib
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def has_bf16() -> bool:
    """Whether bfloat16 is computed in hardware (AVX-512 BF16 or AMX; on ARM, bf16)."""
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & features())


def fingerprint() -> str:
    """A short text that is another one on a processor with other instructions."""
    return hashlib.sha256(" ".join(sorted(features())).encode()).hexdigest()[:12]


def cpu_precision(requested: str) -> str:
    """fp32 or bf16 on a CPU; ValueError for what no CPU engine computes.

    "auto" is fp32 here: bf16 is taken only after a comparison (engines.load_engine), which an engine cannot make alone.
    """
    if requested == "auto":
        return "fp32"
    if requested not in ("fp32", "bf16"):
        raise ValueError(f"precision {requested} is not to be had on a CPU with this engine: use auto, fp32 or bf16")
    return requested


def features() -> set[str]:
    """The names that the kernel gives to the processor's instructions; none where it does not say."""
    try:
        text = CPU_INFO.read_text("ascii", "replace")
    except OSError:
        return set()
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    return set(next(lines, "").split())
