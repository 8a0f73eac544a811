"""Where, when and with what something was measured: the part of a figure's JSON that says what it depends on."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slotwise.worker.engines.processor import has_bf16
from slotwise.worker.environment.cores import available_cores

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("slotwise", "torch", "torchserve", "multi-model-server", "onnxruntime", "openvino", "ctranslate2"),
    *("transformers", "pillow", "simplejpeg", "numpy", "optuna"),
)


def about(command: str = "") -> dict[str, Any]:
    """Commit, tree, date, command and machine of a measurement that was made now.

    tree: git's hash of slotwise/ in that commit. Figures with one tree are figures of one product, whatever else was committed.

    command: how to repeat it; this process's own where it is empty.
    """
    return {
        "commit": commit(),
        "tree": git("rev-parse", "--short=12", "HEAD:slotwise", root=ROOT),
        "date": datetime.now(UTC).date().isoformat(),
        "command": command or shlex.join(["python", "-m", _module(), *sys.argv[1:]]),
        "machine": machine(),
    }


def commit(root: Path = ROOT) -> str | None:
    """Which commit is checked out, with "-dirty" where a file differs; what measuring writes does not count."""
    head = git("rev-parse", "--short=12", "HEAD", root=root)
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs", ":!README.md", root=root)
    return f"{head}-dirty" if head and changed else head


def _module() -> str:
    """What this process was started as."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).name


def machine() -> dict[str, Any]:
    """What the figures depend on: the processor and what it can do, the system, the packages (None: not installed)."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
    fields = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines}
    flags = set(fields.get("flags", "").split())
    return {
        "cpu": fields.get("model name", platform.processor()),
        "cores": available_cores(),
        "avx2": "avx2" in flags,
        "avx512": "avx512f" in flags,
        "vnni": bool(flags & {"avx512_vnni", "avx_vnni"}),
        "amx": "amx_tile" in flags,
        "bf16": has_bf16(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def version(package: str) -> str | None:
    """The installed version, None where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git(*arguments: str, root: Path = ROOT) -> str | None:
    """What git prints; None where there is no git, no repository, or no such commit."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
