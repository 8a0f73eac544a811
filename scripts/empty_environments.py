"""Try the wheel in empty environments, without this clone: python scripts/empty_environments.py --write docs/installing.md

    python scripts/empty_environments.py --python 3.11 --extras base tune     only these are tried; the others as they were

For each Python and extra it makes an environment, installs the wheel with constraints.txt, and takes a model from `new` to
`predict`. A command works, or names in one line what it needs, or fails: then the exit code is 1. A Python that is not on this
machine is left out, and named. What came of each environment is kept in .slotwise/environments.json as soon as it is known.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from scripts.other_python import interpreter  # noqa: E402

PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = ("base", "torch", "onnx", "openvino", "torchserve", "mms", "ray", "triton", "images", "text", "tune", "otel")
BASE = "base"
KEPT = ROOT / ".slotwise" / "environments.json"
BEGIN, END = "<!-- written by scripts/empty_environments.py -->", "<!-- end of what it writes -->"
PATIENCE_S = 600
HANDLER = "def handle(data, context):\n    return data and [len(row['body']) for row in data]\n"
COMMANDS: dict[str, tuple[str, ...]] = {  # what the table calls it: what is called, one after the other
    "`slotwise doctor`": ("doctor",),
    "`slotwise new`": ("new mine",),
    "`slotwise build`, a graph of ONNX": ("new --form onnx graph", "build graph"),
    "`slotwise check`": ("check model_store/graph.mar",),
    "`slotwise guard`, an archive of another tool": ("guard theirs.mar",),
    "`serve --server slotwise`, `predict`": ("serve graph --server slotwise --port 0 --detach", "predict graph graph/red.png"),
    "`slotwise gateway`": ("gateway --port 0 --translation-port -1 --detach",),
    "`slotwise tune`": ("tune graph --max-trials 2 --seconds 0.5 --clients 2",),
    "`slotwise stop`": ("stop",),
    "`new --form torch`, `build`": ("new --form torch network", "build network"),
    "`serve --set engine=openvino`": ("serve graph --server slotwise --set engine=openvino --port 0 --detach", "stop"),
    "`gateway --traces`": (
        "serve graph --server slotwise --port 0 --detach",
        "gateway --port 0 --translation-port -1 --traces http://127.0.0.1:4318 --detach",
        "stop",
    ),
    **{
        f"`serve --server {kind}`": (f"serve graph --server {kind} --port 0 --detach", "predict graph graph/red.png", "stop")
        for kind in ("torchserve", "mms", "ray", "triton")
    },
}
FIRST_ANSWER = ("`slotwise build`, a graph of ONNX", "`serve --server slotwise`, `predict`")


@dataclass
class Tried:
    """What came of one environment. cells: for each of COMMANDS "works", what it needs, or "FAILED"."""

    python: str
    extra: str
    installed_s: float = 0.0
    size_mib: int = 0
    answered_s: float = 0.0
    cells: dict[str, str] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)


def tried(wheel: Path, python: str, program: str, extra: str) -> Tried:
    """Install into an environment that goes afterwards, and call every command in a folder of its own."""
    result = Tried(python, extra)
    with tempfile.TemporaryDirectory(prefix="sw-", ignore_cleanup_errors=True) as name:
        place, began = Path(name), time.monotonic()
        subprocess.run((program, "-m", "venv", place / "venv"), check=True)
        pip = (place / "venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        wanted = str(wheel) if extra == BASE else f"{wheel}[{extra}]"
        subprocess.run((*pip, "--constraint", ROOT / "constraints.txt", wanted), check=True, stderr=subprocess.DEVNULL)
        result.installed_s = time.monotonic() - began
        result.size_mib = sum(file.lstat().st_size for file in (place / "venv").rglob("*") if file.is_file()) >> 20
        (place / "work").mkdir()
        _strangers_archive(place)
        for title, calls in COMMANDS.items():
            began = time.monotonic()
            result.cells[title], result.printed[title] = _called(place, calls)
            result.answered_s += time.monotonic() - began if title in FIRST_ANSWER else 0.0
    return result


def _environ(place: Path) -> dict[str, str]:
    """Nothing of the caller's Python, and a home of its own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "SLOTWISE", "VIRTUAL_ENV"))}
    return {**kept, "PATH": f"{place}/venv/bin:/usr/local/bin:/usr/bin:/bin", "HOME": str(place), "TMPDIR": str(place)}


def _strangers_archive(place: Path) -> None:
    (place / "work/their_handler.py").write_text(HANDLER, "utf-8")
    command = f"{place}/venv/bin/torch-model-archiver --model-name theirs --version 1.0 --handler their_handler.py".split()
    subprocess.run(command, cwd=place / "work", env=_environ(place), check=True)


def _called(place: Path, calls: Sequence[str]) -> tuple[str, str]:
    """The table's cell, and what was printed by the call that did not work."""
    for call in calls:
        command = (place / "venv/bin/slotwise", *call.split())
        try:
            done = subprocess.run(
                command, cwd=place / "work", env=_environ(place), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=PATIENCE_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "FAILED", f"{call}: no end after {PATIENCE_S} s"
        if done.returncode:
            if calls[-1] == "stop" != call:  # what it started before
                _called(place, calls[-1:])
            needed = re.search(r'^hint: .* -m pip install (?:"slotwise\[(\w+)\]"|--no-deps (\S+))', done.stderr, re.MULTILINE)
            if needed and done.returncode == 1 and "Traceback" not in done.stderr:
                return (f"needs `{needed[1]}`" if needed[1] else f"needs {needed[2].partition('=')[0]}"), ""
            return "FAILED", f"{call}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return "works", ""


def table(results: Sequence[Tried]) -> Iterator[str]:
    """The lines of it: a column for each environment."""
    yield f"| | {' | '.join(f'{one.python} {one.extra}' for one in results)} |"
    yield f"| --- |{' --- |' * len(results)}"
    for title in COMMANDS:
        yield f"| {title} | {' | '.join(one.cells.get(title, 'not tried') for one in results)} |"
    yield f"| the environment, MiB | {' | '.join(str(one.size_mib) for one in results)} |"
    yield f"| installing, s | {' | '.join(f'{one.installed_s:.0f}' for one in results)} |"
    yield f"| `new` to the first answer, s | {' | '.join(f'{one.answered_s:.0f}' for one in results)} |"


def kept() -> list[Tried]:
    """What is known of each environment, in the table's order."""
    known = [Tried(**one) for one in json.loads(KEPT.read_text("utf-8"))] if KEPT.is_file() else []
    return sorted(
        known, key=lambda one: (one.extra != BASE, EXTRAS.index(one.extra) if one.extra in EXTRAS else 99, one.python)
    )


def keep(result: Tried) -> None:
    """In the place of what was known of its environment."""
    others = [one for one in kept() if (one.python, one.extra) != (result.python, result.extra)]
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps([asdict(one) for one in [*others, result]], indent=1), "utf-8")


def main() -> int:
    """The exit code: 1 where a command fails and does not say what it needs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=list(PYTHONS), help="which versions; all but the first: base alone")
    parser.add_argument("--extras", nargs="+", default=list(EXTRAS), choices=[*EXTRAS, "all"])
    parser.add_argument("--write", type=Path, help="put the table into this page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sw-wheel-") as folder:
        build = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
        subprocess.run(build, check=True)
        wheel = next(Path(folder).glob("*.whl"))
        for version in options.python:
            program = interpreter(version)
            if program is None:
                print(f"Python {version} is not here: nothing was tried on it", file=sys.stderr)
                continue
            for extra in options.extras if version == options.python[0] else [BASE]:
                result = tried(wheel, version, program, extra)
                keep(result)
                for title, text in filter(lambda one: one[1], result.printed.items()):
                    print(f"{version} {extra}, {title}: {result.cells[title]} {text}", file=sys.stderr, flush=True)
    results = kept()
    lines = "\n".join(table(results))
    print(lines)
    if options.write:
        page = options.write.read_text("utf-8")
        before, _, rest = page.partition(BEGIN)
        options.write.write_text(f"{before}{BEGIN}\n{lines}\n{END}{rest.partition(END)[2]}", "utf-8")
    return int(any("FAILED" in one.cells.values() for one in results))


if __name__ == "__main__":
    sys.exit(main())
