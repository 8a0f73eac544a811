"""Find out what this machine's processor computes in hardware."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def has_bf16() -> bool:
    """Whether bfloat16 is computed in hardware (AVX-512 BF16 or AMX; on ARM, bf16)."""
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & features())


def has_int8() -> bool:
    """Whether products of int8 are added up in hardware without saturating (VNNI, AMX; on ARM, dot products)."""
    return bool({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"} & features())


def fingerprint() -> str:
    """A short text that differs between processors with different instructions."""
    return hashlib.sha256(" ".join(sorted(features())).encode()).hexdigest()[:12]


def named(device: str = "cpu") -> str:
    """What computes there, in words and exactly enough: two that round otherwise have different names."""
    if device == "cuda":  # pragma: no cover  needs a GPU
        import torch  # noqa: PLC0415  heavy; whoever uses CUDA has it

        return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return f"{model_name() or platform.machine()} ({fingerprint()})"


def set_up_cuda(memory_fraction: float) -> None:
    """Have PyTorch compute fp32 as fp32 (by itself its convolutions are TF32), and take at most this share of the memory."""
    import torch  # noqa: PLC0415  heavy; whoever uses CUDA has it

    torch.backends.cudnn.allow_tf32 = False
    torch.cuda.set_per_process_memory_fraction(memory_fraction)


def cpu_precision(requested: str) -> str:
    """The precision of a CPU engine: "fp32" or "bf16". Raises ValueError for any other.

    "auto" is fp32 here. Whether bf16 may be served is found by comparing two engines (see engines.load_engine), so a single
    engine cannot choose it.
    """
    if requested == "auto":
        return "fp32"
    if requested not in ("fp32", "bf16"):
        raise ValueError(f"this engine does not compute in {requested} on a CPU: use auto, fp32 or bf16")
    return requested


def model_name() -> str:
    """The name that the maker gave the processor; "" where the kernel does not say."""
    return next((line.partition(":")[2].strip() for line in _cpu_info() if line.startswith("model name")), "")


def features() -> set[str]:
    """The names that the kernel gives to the processor's instructions; none where it does not say."""
    return set(next((line for line in _cpu_info() if line.startswith(("flags", "Features"))), "").split())


def _cpu_info() -> list[str]:
    """The lines in which the kernel describes the processors; none where it does not."""
    try:
        return CPU_INFO.read_text("ascii", "replace").splitlines()
    except OSError:
        return []
