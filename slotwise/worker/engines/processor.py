"""What this machine's processor can do in hardware."""

from __future__ import annotations

from pathlib import Path


def has_bf16() -> bool:
    """Whether bfloat16 is computed in hardware (AVX-512 BF16 or AMX; on ARM, bf16)."""
    try:
        text = Path("/proc/cpuinfo").read_text("ascii", "replace")
    except OSError:
        return False
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(next(lines, "").split()))


def cpu_precision(wanted: str) -> str:
    """fp32 or bf16 on a CPU for what the profile wants; ValueError for what no CPU engine computes."""
    if wanted == "auto":
        return "bf16" if has_bf16() else "fp32"
    if wanted not in ("fp32", "bf16"):
        raise ValueError(f"precision {wanted} is not to be had on a CPU with this engine: use auto, fp32 or bf16")
    return wanted
