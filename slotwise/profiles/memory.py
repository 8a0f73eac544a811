"""How much memory there is, and how much of it is free; in a container those may be less than the machine's."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

import psutil

M_MMAP_THRESHOLD = -3  # of glibc's mallopt
GARBAGE_OBJECTS = 10_000  # new ones, which are looked at together
CGROUP = Path("/sys/fs/cgroup")
LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))  # v2, v1


def total_bytes(cgroup: Path = CGROUP) -> int:
    """The machine's memory, or the container's limit where that is less."""
    limits = (_number(cgroup / limit) for limit, _ in LIMITS)
    return min(int(psutil.virtual_memory().total), *(limit for limit in limits if limit is not None), 1 << 62)


def free_bytes(cgroup: Path = CGROUP) -> int:
    """The memory that can still be taken: the machine's, or what is left of the container's limit where that is less."""
    free = int(psutil.virtual_memory().available)
    for limit, used in ((_number(cgroup / limit), _number(cgroup / used)) for limit, used in LIMITS):
        if limit is not None and used is not None:
            free = min(free, max(0, limit - used))
    return free


def resident_bytes(pid: int) -> int:
    """What a process takes, with what it shares with others; 0 where there is none or nobody can tell, or for the pid 0."""
    try:
        return int(psutil.Process(pid).memory_info().rss) if pid else 0
    except (psutil.Error, OSError):  # OSError: this process has as many files open as it may
        return 0


def give_back_blocks(least_bytes: int) -> None:
    """Have this process give every block of that size or more back to the system as soon as it is free, on Linux with glibc.

    Else it keeps them, and the more the larger they once were, in pieces between what lives longer.
    """
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, least_bytes)


def leave_alone_what_is_there() -> None:
    """Have garbage collection pass over what a server has made until now, which stays, and look at the rest less often.

    It stops everybody while it looks: at 700 new objects, as it comes, ten requests bring the next look.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, *gc.get_threshold()[1:])


def _number(file: Path) -> int | None:
    """What a file of the kernel says; None where there is no such file or no limit ("max")."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
