"""An archive that no tool of ours made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HANDLER = Path(__file__).parents[1] / "server" / "handlers" / "once_a_batch.py"


def foreign(folder: Path, name: str, config: str = "", requirements: Path | None = None) -> Path:
    """An archive as torch-model-archiver makes it."""
    command = ["torch-model-archiver", "--model-name", name, "--version", "1.0", "--export-path", str(folder)]
    command += ["--handler", str(HANDLER)]
    if config:
        (folder / "model-config.yaml").write_text(config)
        command += ["--config-file", str(folder / "model-config.yaml")]
    command += ["--requirements-file", str(requirements)] if requirements else []
    program = str(Path(sys.executable).with_name(command[0]))
    subprocess.run([program, *command[1:]], check=True, capture_output=True, env={**os.environ, "TMPDIR": str(folder)})
    return folder / f"{name}.mar"
