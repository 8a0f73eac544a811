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

DEFAULT_TIMEOUT_S, MMS_TIMEOUT_S = 120.0, 7200.0  # TorchServe's own, and MMS's
DEFAULT_RESPONSE_BYTES = 6_553_500  # both servers' own
OPTIONS = {b"-f", b"--ts-config", b"--mms-config"}
LEVELS = 4  # a worker of MMS is a child of a child


@dataclass(frozen=True)
class ServerLimits:
    """response_timeout_s: after this the server ends the worker. max_response_bytes: of one answer; None where nobody knows."""

    response_timeout_s: float = DEFAULT_TIMEOUT_S
    max_response_bytes: int | None = DEFAULT_RESPONSE_BYTES


def limits_of(raw: Any, environ: Mapping[str, str] = os.environ, server: str = "torchserve") -> ServerLimits:
    """The limits of the worker whose context this is. A registration's own response_timeout is told to nobody.

    server: "torchserve" or "mms", which differ in their keys and variables.
    """
    profile = profile_of_slotwise(environ)
    config = {} if profile else configuration(_config_file(environ))
    if config.get("enable_envvars_config") == "true":
        prefix = "MMS_" if server == "mms" else "TS_"
        config |= {name.removeprefix(prefix).lower(): value for name, value in environ.items() if name.startswith(prefix)}
    described = getattr(raw, "model_yaml_config", None)
    own = described.get("responseTimeout") if isinstance(described, dict) else None
    timeout_s = _number(own or profile.get("response_timeout_s"), _timeout_s(config, server))
    size = profile.get("max_response_bytes") or config.get("max_response_size")
    if not size and not Path("/proc/self").exists():
        return ServerLimits(timeout_s, None)
    return ServerLimits(timeout_s, int(_number(size, DEFAULT_RESPONSE_BYTES)))


def profile_of_slotwise(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The profile's keys for workers, where `slotwise serve` started the server."""
    return dict(json.loads(environ.get("SLOTWISE_WORKER") or "{}"))


def configuration(file: Path | None) -> dict[str, str]:
    """The keys of a config.properties; none where there is no such file."""
    try:
        text = file.read_text("utf-8", "replace") if file else ""
    except OSError:
        text = ""
    return dict(re.findall(r"^[ \t]*([\w.]+)[ \t]*[=:][ \t]*(.*?)[ \t]*$", text, re.MULTILINE))


def _timeout_s(config: Mapping[str, str], server: str) -> float:
    """The configured timeout. MMS has a key for seconds, and counts the one of TorchServe's name in minutes."""
    if server != "mms":
        return _number(config.get("default_response_timeout"), DEFAULT_TIMEOUT_S)
    minutes = _number(config.get("default_response_timeout"), MMS_TIMEOUT_S / 60)
    return _number(config.get("default_response_timeout_seconds"), 60 * minutes)


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
