"""Take one request through an archive's handler, hook by hook, in a process of its own and without a server."""

from __future__ import annotations

import json
import mimetypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slotwise.archive.build import build
from slotwise.archive.inspection import extract
from slotwise.archive.store import archive_of
from slotwise.errors import SlotwiseError
from slotwise.files import project

MODULE = "slotwise/worker/hosts/debugging.py"


def debug(
    model: str, file: Path, headers: Mapping[str, str], profile: str, said: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """The stages, as slotwise.worker.hosts.debugging writes them; each is handed to `said` as it is done.

    model: a .mar file, or a model's folder or name, which is packed anew as it stands and not kept. headers: without a
    content-type the one that the file's name tells.

    Raises SlotwiseError where there is no such file or model, or the archive cannot say its stages.
    """
    if not file.is_file():
        raise SlotwiseError(f"there is no file {file}", "name a file that holds the body of a request")
    sent_headers = {"content-type": mimetypes.guess_type(file.name)[0] or "", **headers}
    with tempfile.TemporaryDirectory(prefix="slotwise-debug-") as name:
        folder = extract(_archive(model, Path(name)), Path(name) / "model").resolve()
        if not (folder / MODULE).is_file():
            raise SlotwiseError(f"{model} is of another tool, or of an earlier release", "`slotwise renew`, or build it again")
        command = [sys.executable, "-P", "-B", "-m", "slotwise.worker.hosts.debugging"]
        command += [str(file.resolve()), json.dumps(sent_headers), profile]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("SLOTWISE_")}
        stages: list[dict[str, Any]] = []
        with subprocess.Popen(
            command, cwd=folder, env={**environ, "PYTHONPATH": str(folder)}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as worker:
            assert worker.stdout is not None
            try:
                for line in worker.stdout:
                    stages.append(json.loads(line))
                    said(stages[-1])
            except BaseException:
                worker.kill()
                worker.wait()  # after Ctrl-C Popen does not: its folder is removed now
                raise
        if worker.returncode not in (0, 1) or not stages:
            after = stages[-1]["stage"] if stages else "its start"
            raise SlotwiseError(f"the process of {model} ended ({worker.returncode}) after {after}", "see what it printed")
    return stages


def _archive(model: str, place: Path) -> Path:
    """The archive that is named, or one of the folder as it stands."""
    if model.endswith(".mar") or not (project.model_folder(model) / "model.toml").is_file():
        return archive_of(model)
    return build(model, place / "store", prove=lambda folder, spec: None)
