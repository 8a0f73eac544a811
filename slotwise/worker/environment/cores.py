"""Count the cores that this process may keep busy; in a container those may be fewer than the machine has."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available_cores(cgroup: Path = CGROUP) -> int:
    """The cores of this process's affinity, or its container's CPU limit where that is lower; at least 1.

    The kernel stops a container's threads for the rest of each period in which they have used up the limit. With more threads
    than cores every batch would wait for a stopped one.
    """
    return max(1, min(len(os.sched_getaffinity(0)), int(_limit(cgroup))))


def _limit(cgroup: Path) -> float:
    """The CPU limit in cores, of cgroup v2 or v1; a very large number where there is none."""
    try:
        if (cgroup / "cpu.max").is_file():
            quota, period = (cgroup / "cpu.max").read_text().split()
        else:
            quota, period = ((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 else 1e9
    except (OSError, ValueError):
        return 1e9
