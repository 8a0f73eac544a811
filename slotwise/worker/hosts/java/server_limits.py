"""What the server will let a batch cost: told by `slotwise serve`, else read where a server of anybody's has it.

A worker is not told its server's configuration. But it is a child of the server, whose command line names the file.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_TIMEOUT_S = 120.0  # both servers' own
DEFAULT_RESPONSE_BYTES = 6_553_500
OPTIONS = {b"-f", b"--ts-config", b"--mms-config"}
LEVELS = 4  # a worker of MMS is a child of a child


@dataclass(frozen=True)
class ServerLimits:
    """response_timeout_s: after this the server ends the worker. max_response_bytes: of one answer; None where nobody knows."""

    response_timeout_s: float = DEFAULT_TIMEOUT_S
    max_response_bytes: int | None = DEFAULT_RESPONSE_BYTES


def limits_of(raw: Any, environ: Mapping[str, str] = os.environ) -> ServerLimits:
    """The limits of the worker whose context this is. A registration's own response_timeout is told to nobody."""
    profile = profile_of_slotwise(environ)
    config = {} if profile else configuration(_config_file(environ))
    if config.get("enable_envvars_config") == "true":
        config |= {name[3:].lower(): value for name, value in environ.items() if name.startswith("TS_")}
    described = getattr(raw, "model_yaml_config", None)
    own = described.get("responseTimeout") if isinstance(described, dict) else None
    timeout = own or profile.get("response_timeout_s") or config.get("default_response_timeout")
    size = profile.get("max_response_bytes") or config.get("max_response_size")
    if not size and not Path("/proc/self").exists():
        return ServerLimits(_number(timeout, DEFAULT_TIMEOUT_S), None)
    return ServerLimits(_number(timeout, DEFAULT_TIMEOUT_S), int(_number(size, DEFAULT_RESPONSE_BYTES)))


def profile_of_slotwise(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The profile's keys for workers, where `slotwise serve` started the server."""
    return dict(json.loads(environ.get("SLOTWISE_WORKER") or "{}"))


def configuration(file: Path | None) -> dict[str, str]:
    """The keys of a config.properties; none where there is no such file."""
    try:
        text = file.read_text("utf-8", "replace") if file else ""
    except OSError:
        text = ""
    return dict(re.findall(r"^\s*([\w.]+)\s*[=:]\s*(.*?)\s*$", text, re.MULTILINE))


def _config_file(environ: Mapping[str, str]) -> Path | None:
    """The file that the server's command line names."""
    pid = os.getpid()
    for _ in range(LEVELS):
        try:
            process = Path("/proc", str(pid))
            words = (process / "cmdline").read_bytes().split(b"\0")
            for option, value in itertools.pairwise(words):
                if option in OPTIONS:
                    return Path(os.readlink(process / "cwd"), os.fsdecode(value))
            pid = int(re.findall(r"^PPid:\s*(\d+)", (process / "status").read_text(), re.MULTILINE)[0])
        except (OSError, IndexError):
            break
    named = environ.get("TS_CONFIG_FILE") or environ.get("MMS_CONFIG_FILE")
    return Path(named) if named else None


def _number(value: Any, default: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return default
    return number if number > 0 else default
