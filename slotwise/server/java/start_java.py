"""Run a server's own start module, but have it start Java with a Python for the workers and more options.

    python -m slotwise.server.java.start_java torchserve PYTHON -XX:AOTCache=FILE -- --start --ts-config config.properties ...

Java also gets no current folder on its class path: both servers write `.:` before their jars. Java uses no AOT cache where a
folder with files is on the class path, and nothing of the servers is loaded from there. All else stays as they have it.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

MODULES = {"torchserve": "ts.model_server", "mms": "mms.model_server"}


def changed(command: Sequence[str], python: str, options: Sequence[str]) -> list[str]:
    """Java's command with that Python for the workers and the options, and without the current folder on its class path."""
    java, *rest = command
    class_path = rest.index("-cp") + 1
    rest[class_path] = rest[class_path].removeprefix(".:")
    rest[rest.index("--python") + 1] = python
    return [java, *options, *rest]


def main(kind: str, python: str, options: Sequence[str], arguments: Sequence[str]) -> None:
    """Run the start module of `kind` with these arguments; python: a program; options: of Java."""

    def popen(command: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(changed(command, python, options))

    theirs: Any = importlib.import_module(MODULES[kind])
    theirs.subprocess = SimpleNamespace(Popen=popen)  # all that it uses of subprocess
    sys.argv[1:] = arguments
    theirs.start()


if __name__ == "__main__":
    end = sys.argv.index("--")
    main(sys.argv[1], sys.argv[2], sys.argv[3:end], sys.argv[end + 1 :])
