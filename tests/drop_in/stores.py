"""Model stores as people have them, made with torch-model-archiver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HANDLERS = Path(__file__).with_name("handlers")


def archive(store: Path, name: str, handler: str, *, version: str = "1.0", form: str = "default", **files: str | Path) -> None:
    """Put an archive into a store. handler: a file below handlers/, or a default handler's name. files: further options."""
    store.mkdir(parents=True, exist_ok=True)
    own = HANDLERS / f"{handler}.py"
    command = ["torch-model-archiver", "--model-name", name, "--version", version, "--export-path", str(store), "--force"]
    command += ["--handler", str(own) if own.exists() else handler, "--archive-format", form]
    for option, value in files.items():
        command += [f"--{option.replace('_', '-')}", str(value)]
    program = str(Path(sys.executable).with_name(command[0]))
    subprocess.run([program, *command[1:]], check=True, capture_output=True, env={**os.environ, "TMPDIR": str(store.parent)})


def plain_store(store: Path) -> Path:
    """Handlers that need no torch, in every form that an archive can have."""
    for name in ("echo", "headers", "errors", "never"):
        archive(store, name, name)
    archive(store, "spare", "echo")
    archive(store, "echo-2", "echo", version="2.0")
    archive(store, "folded", "echo", form="no-archive")
    archive(store, "balled", "echo", form="tgz")
    (store / "junk.mar").write_bytes(b"this is no zip")
    return store
