"""The one runner of pages: the commands of a page's blocks, typed in a shell, and what they print compared with the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

NOT_THE_PAGES = ("SLOTWISE_", "COLUMNS", "FORCE_COLOR", "TTY_")  # a page shows what a pipe gets, wherever the test runs
NEXT = "@@"  # printed before each command


@dataclass(frozen=True)
class Command:
    """A command of a page and the lines that the page shows below it."""

    text: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Typed:
    """What came of commands. printed: by each that ran, its two streams together; the last one may have failed."""

    code: int
    printed: tuple[str, ...]


def commands(page: str, fence: str = "console") -> list[Command]:
    """Every command of a page's blocks with that fence, here-documents whole."""
    found: list[tuple[str, list[str]]] = []
    inside = False
    for block in re.findall(rf"```{fence}\n(.*?)```", page, re.DOTALL):
        for line in block.splitlines():
            if inside:
                found[-1] = (f"{found[-1][0]}\n{line}", [])
                inside = line != "END"
            elif line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
                inside = "<<'END'" in line
            else:
                found[-1][1].append(line)
    return [Command(text, tuple(shown)) for text, shown in found]


def typed(texts: Iterable[str], folder: Path, output: Path, **environ: str) -> Typed:
    """Type commands in a folder, one after the other until one fails; `slotwise` is this environment's.

    output: the file for what they print. A pipe would be held open by the servers that they start.
    """
    script = "".join(f"echo '{NEXT}'\n{text}\n" for text in texts)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(NOT_THE_PAGES)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {**inherited, "SLOTWISE_JAVA_CACHE": "0", "PATH": path, **environ}
    with output.open("w") as target:
        done = subprocess.run(
            ["bash", "-ec", script], cwd=folder, env=given, stdin=subprocess.DEVNULL, stdout=target, stderr=target, timeout=800
        )
    return Typed(done.returncode, tuple(output.read_text("utf-8").split(f"{NEXT}\n")[1:]))


def pattern(line: str) -> re.Pattern[str]:
    """A printed line: any number fits a number, anything fits "..."; engine, precision and threads are the machine's."""
    line = re.sub(r"(engine|precision|threads)( +)\S+", r"\1\2...", line)
    parts = [re.sub(r"\d+(\\\.\d+)?", r"[0-9.]+", re.escape(part)) for part in line.split("...")]
    return re.compile(".*".join(parts))


def missing(expected: Sequence[str], printed: str) -> list[str]:
    """The expected lines that were not printed, in their order."""
    lines = iter(printed.splitlines())
    return [line for line in expected if line != "..." and not any(pattern(line).fullmatch(one) for one in lines)]
